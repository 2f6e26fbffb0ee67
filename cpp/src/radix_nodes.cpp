#include "astrai/radix_nodes.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "astrai/error.h"

namespace astrai {
namespace {

constexpr int32_t kNone = -1;
// Odd 64-bit constants of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
constexpr uint64_t kMulA = 0xBF58476D1CE4E5B9ull;
constexpr uint64_t kMulB = 0x94D049BB133111EBull;
// Ids compared by one memcmp before the exact position is looked for.
constexpr int64_t kCompareBlock = 256;

int64_t common_prefix(const int32_t* a, const int32_t* b, int64_t n) {
  int64_t i = 0;
  while (i + kCompareBlock <= n && std::memcmp(a + i, b + i, kCompareBlock * sizeof(int32_t)) == 0) i += kCompareBlock;
  const int64_t end = std::min(n, i + kCompareBlock);
  while (i < end && a[i] == b[i]) ++i;
  return i;
}

}  // namespace

RadixNodes::RadixNodes(int32_t page_size, int hash_bits) : page_size_(page_size), buckets_(64, kNone) {
  if (page_size < 1) {
    throw std::invalid_argument("RadixCache: page_size is " + std::to_string(page_size) + "; it must be 1 or more");
  }
  if (hash_bits < 0 || hash_bits > 64) {
    throw std::invalid_argument("RadixCache: hash_bits is " + std::to_string(hash_bits) + "; it must be in [0, 64]");
  }
  hash_mask_ = hash_bits == 64 ? ~uint64_t{0} : (uint64_t{1} << hash_bits) - 1;
}

int32_t RadixNodes::node_of(int32_t page) const {
  const bool is_known = page >= 0 && static_cast<size_t>(page) < page_node_.size();
  return is_known ? page_node_[static_cast<size_t>(page)] : kNone;
}

Int32Span RadixNodes::ids(int32_t node) const {
  const RadixNode& n = (*this)[node];
  return {n.edge.get() + static_cast<int64_t>(n.begin) * page_size_, static_cast<int64_t>(n.n_pages) * page_size_};
}

Int32Span RadixNodes::pages(int32_t node) const {
  const RadixNode& n = (*this)[node];
  return {n.edge.get() + static_cast<int64_t>(n.capacity) * page_size_ + n.begin, n.n_pages};
}

uint64_t RadixNodes::hash_page(const int32_t* ids) const {
  uint64_t h = kMulA;
  int32_t i = 0;
  for (; i + 2 <= page_size_; i += 2) {
    uint64_t pair;
    std::memcpy(&pair, ids + i, sizeof pair);
    h = (h ^ pair) * kMulB;
    h ^= h >> 29;
  }
  if (i < page_size_) h = (h ^ static_cast<uint32_t>(ids[i])) * kMulB;
  h = (h ^ (h >> 32)) * kMulA;
  return (h ^ (h >> 29)) & hash_mask_;
}

int32_t RadixNodes::find_child(int32_t parent, const int32_t* ids) const {
  const uint64_t key = hash_page(ids);
  const auto page_bytes = static_cast<size_t>(page_size_) * sizeof(int32_t);
  for (int32_t node = buckets_[bucket_of(parent, key)]; node != kNone; node = (*this)[node].next_in_bucket) {
    const RadixNode& n = (*this)[node];
    if (n.key == key && n.parent == parent && std::memcmp(this->ids(node).values, ids, page_bytes) == 0) return node;
  }
  return kNone;
}

int32_t RadixNodes::common_pages(int32_t node, Int32Span ids) const {
  const Int32Span edge = this->ids(node);
  return static_cast<int32_t>(common_prefix(edge.values, ids.values, std::min(edge.size, ids.size)) / page_size_);
}

int32_t RadixNodes::take_index() {
  if (free_indices_.empty()) {
    nodes_.emplace_back();
    free_indices_.reserve(nodes_.capacity());  // giving an index back must not fail
    return static_cast<int32_t>(nodes_.size()) - 1;
  }
  const int32_t node = free_indices_.back();
  free_indices_.pop_back();
  return node;
}

void RadixNodes::copy_pages(RadixNode& node, int32_t at, const int32_t* ids, Int32Span pages) const {
  std::copy(ids, ids + pages.size * page_size_, node.edge.get() + static_cast<int64_t>(at) * page_size_);
  std::copy(pages.begin(), pages.end(), node.edge.get() + static_cast<int64_t>(node.capacity) * page_size_ + at);
}

// Gives a node's live pages a buffer of another size.
void RadixNodes::move_edge(RadixNode& node, std::unique_ptr<int32_t[]> edge, int32_t capacity) {
  const int32_t* old_ids = node.edge.get() + static_cast<int64_t>(node.begin) * page_size_;
  const int32_t* old_pages = node.edge.get() + static_cast<int64_t>(node.capacity) * page_size_ + node.begin;
  RadixNode moved{};
  moved.edge = std::move(edge);
  moved.capacity = capacity;
  copy_pages(moved, 0, old_ids, {old_pages, node.n_pages});
  edge_capacity_ += capacity - node.capacity;
  node.edge = std::move(moved.edge);
  node.begin = 0;
  node.capacity = capacity;
}

// Keeps at least half of a buffer alive, which bounds memory over any number of splits and evictions.
void RadixNodes::shrink_edge(RadixNode& node) {
  if (2 * node.n_pages >= node.capacity) return;
  std::unique_ptr<int32_t[]> smaller(new (std::nothrow) int32_t[edge_size(node.n_pages)]);
  if (smaller) move_edge(node, std::move(smaller), node.n_pages);  // out of memory: the large buffer serves on
}

void RadixNodes::map_pages(Int32Span pages, int32_t node) {
  for (const int32_t page : pages) page_node_[static_cast<size_t>(page)] = node;
}

// map_pages() for pages that must not be mapped yet; one pass checks and maps, and takes its own work back on a clash.
void RadixNodes::map_new_pages(Int32Span pages, int32_t node) {
  int32_t highest = 0;
  int32_t sign = 0;
  for (const int32_t page : pages) {
    highest = std::max(highest, page);
    sign |= page;
  }
  if (sign < 0) throw std::invalid_argument("RadixCache: a page index is negative");
  if (static_cast<size_t>(highest) >= page_node_.size()) page_node_.resize(static_cast<size_t>(highest) + 1, kNone);
  for (int64_t i = 0; i < pages.size; ++i) {
    int32_t& mapped = page_node_[static_cast<size_t>(pages[i])];
    if (mapped != kNone) {
      map_pages(pages.head(i), kNone);
      throw std::invalid_argument("RadixCache: page " + std::to_string(pages[i]) +
                                  " is listed twice or recorded in another place; evict() it first");
    }
    mapped = node;
  }
}

void RadixNodes::link_child(int32_t parent, int32_t child) {
  RadixNode& p = (*this)[parent];
  RadixNode& c = (*this)[child];
  c.parent = parent;
  c.prev_sibling = kNone;
  c.next_sibling = p.first_child;
  if (p.first_child != kNone) (*this)[p.first_child].prev_sibling = child;
  p.first_child = child;
  table_insert(child);
}

void RadixNodes::unlink_child(int32_t child) {
  table_remove(child);
  const RadixNode& c = (*this)[child];
  if (c.next_sibling != kNone) (*this)[c.next_sibling].prev_sibling = c.prev_sibling;
  if (c.prev_sibling != kNone) {
    (*this)[c.prev_sibling].next_sibling = c.next_sibling;
  } else {
    (*this)[c.parent].first_child = c.next_sibling;
  }
}

size_t RadixNodes::bucket_of(int32_t parent, uint64_t key) const {
  const uint64_t mixed = (key ^ (static_cast<uint64_t>(parent) * kMulB)) * kMulA;
  return static_cast<size_t>(mixed >> 32) & (buckets_.size() - 1);
}

void RadixNodes::table_insert(int32_t node) {
  RadixNode& n = (*this)[node];
  int32_t& head = buckets_[bucket_of(n.parent, n.key)];
  n.next_in_bucket = head;
  head = node;
  ++n_in_table_;
}

void RadixNodes::table_remove(int32_t node) {
  const RadixNode& n = (*this)[node];
  int32_t* link = &buckets_[bucket_of(n.parent, n.key)];
  while (*link != node) link = &(*this)[*link].next_in_bucket;
  *link = n.next_in_bucket;
  --n_in_table_;
}

// Makes room for one more node before anything changes, so that an insertion cannot fail half way.
void RadixNodes::table_grow() {
  if (static_cast<size_t>(n_in_table_) < buckets_.size()) return;
  std::vector<int32_t> larger(buckets_.size() * 2, kNone);
  larger.swap(buckets_);
  n_in_table_ = 0;
  for (int32_t head : larger) {
    while (head != kNone) {
      const int32_t next = (*this)[head].next_in_bucket;
      table_insert(head);
      head = next;
    }
  }
}

int32_t RadixNodes::add_root(uint64_t key) {
  const int32_t root = take_index();
  (*this)[root] = RadixNode{};
  (*this)[root].key = key;
  return root;
}

int32_t RadixNodes::add_leaf(int32_t parent, const int32_t* ids, Int32Span pages) {
  const auto n_pages = static_cast<int32_t>(pages.size);
  table_grow();
  RadixNode leaf;
  leaf.edge.reset(new int32_t[edge_size(n_pages)]);
  leaf.capacity = n_pages;
  copy_pages(leaf, 0, ids, pages);
  leaf.n_pages = n_pages;
  leaf.depth = end_depth(parent);
  leaf.key = hash_page(ids);
  const int32_t node = take_index();
  try {
    map_new_pages(pages, node);
  } catch (...) {
    free_indices_.push_back(node);
    throw;
  }
  edge_capacity_ += n_pages;
  (*this)[node] = std::move(leaf);
  link_child(parent, node);
  return node;
}

void RadixNodes::append(int32_t leaf, const int32_t* ids, Int32Span pages) {
  RadixNode& n = (*this)[leaf];
  const auto n_pages = static_cast<int32_t>(n.n_pages + pages.size);
  const int32_t capacity = std::max(n_pages, 2 * n.n_pages);
  std::unique_ptr<int32_t[]> larger;
  if (n.begin + n_pages > n.capacity) larger.reset(new int32_t[edge_size(capacity)]);
  map_new_pages(pages, leaf);
  if (larger) move_edge(n, std::move(larger), capacity);
  copy_pages(n, n.begin + n.n_pages, ids, pages);
  n.n_pages = n_pages;
}

int32_t RadixNodes::split(int32_t node, int32_t n_upper) {
  table_grow();
  RadixNode upper;
  upper.edge.reset(new int32_t[edge_size(n_upper)]);
  upper.capacity = n_upper;
  copy_pages(upper, 0, ids(node).values, pages(node).head(n_upper));
  const int32_t above = take_index();
  RadixNode& lower = (*this)[node];
  upper.n_pages = n_upper;
  upper.depth = lower.depth;
  upper.key = lower.key;
  upper.ref_count = lower.ref_count;
  const int32_t parent = lower.parent;
  unlink_child(node);
  lower.begin += n_upper;
  lower.n_pages -= n_upper;
  lower.depth += n_upper;
  lower.key = hash_page(ids(node).values);
  edge_capacity_ += n_upper;
  (*this)[above] = std::move(upper);
  map_pages(pages(above), above);
  link_child(parent, above);
  link_child(above, node);
  shrink_edge(lower);
  return above;
}

void RadixNodes::pop_pages(int32_t leaf, int32_t n) {
  RadixNode& node = (*this)[leaf];
  map_pages(pages(leaf).from(node.n_pages - n), kNone);
  node.n_pages -= n;
  if (node.n_pages > 0) {
    shrink_edge(node);
    return;
  }
  // The key still names the first page, so the table entry is found after the page is gone.
  unlink_child(leaf);
  edge_capacity_ -= node.capacity;
  node = RadixNode{};
  free_indices_.push_back(leaf);
}

void RadixNodes::remove_root(int32_t root) {
  (*this)[root] = RadixNode{};
  free_indices_.push_back(root);
}

void RadixNodes::check_integrity() const {
  int64_t n_edge_pages = 0;
  int64_t capacity = 0;
  int32_t n_children = 0;
  for (int32_t node = 0; node < this->capacity(); ++node) {
    const RadixNode& n = (*this)[node];
    capacity += n.capacity;
    n_edge_pages += n.n_pages;
    if (n.begin + n.n_pages > n.capacity || 2 * n.n_pages < n.capacity) {
      throw Error("RadixNodes: node " + std::to_string(node) + " holds " + std::to_string(n.n_pages) + " pages from " +
                  std::to_string(n.begin) + " on in room for " + std::to_string(n.capacity));
    }
    for (const int32_t page : pages(node)) {
      if (node_of(page) != node) {
        throw Error("RadixNodes: page " + std::to_string(page) + " lies in node " + std::to_string(node) + " != node_of(" +
                    std::to_string(node_of(page)) + ")");
      }
    }
    for (int32_t child = n.first_child, prev = kNone; child != kNone; prev = child, child = (*this)[child].next_sibling) {
      const RadixNode& c = (*this)[child];
      ++n_children;
      if (c.parent != node || c.prev_sibling != prev || c.depth != end_depth(node) || c.n_pages < 1 ||
          find_child(node, ids(child).values) != child || c.key != hash_page(ids(child).values)) {
        throw Error("RadixNodes: child " + std::to_string(child) + " of node " + std::to_string(node) +
                    " is not found under its own first page, or its parent, depth or siblings are wrong");
      }
    }
  }
  const auto n_mapped = page_node_.size() - static_cast<size_t>(std::count(page_node_.begin(), page_node_.end(), kNone));
  if (n_children != n_in_table_ || capacity != edge_capacity_ || static_cast<int64_t>(n_mapped) != n_edge_pages) {
    throw Error("RadixNodes: children(" + std::to_string(n_children) + ") != in table(" + std::to_string(n_in_table_) +
                "), or mapped pages(" + std::to_string(n_mapped) + ") != pages in edges(" + std::to_string(n_edge_pages) +
                "), or room(" + std::to_string(capacity) + ") != counted room(" + std::to_string(edge_capacity_) + ")");
  }
}

int64_t RadixNodes::state_bytes() const {
  const size_t n_indices = free_indices_.capacity() + page_node_.capacity() + buckets_.capacity();
  return static_cast<int64_t>(nodes_.capacity() * sizeof(RadixNode) + n_indices * sizeof(int32_t)) +
         edge_capacity_ * (page_size_ + 1) * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace astrai
