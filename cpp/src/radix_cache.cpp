// The order of use and the holds of RadixCache. Displays, miss reasons and checks are in radix_inspect.cpp.
#include "astrai/radix_cache.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "astrai/error.h"

namespace astrai {
namespace {

constexpr size_t kEvictedSlots = 4096;

}  // namespace

RadixCache::RadixCache(int32_t page_size, int hash_bits) : nodes_(page_size, hash_bits), evicted_(kEvictedSlots, 0) {}

RadixMatch RadixCache::lookup(Int32Span ids, const std::string& namespace_name) const {
  RadixMatch match;
  match.namespace_key = std::hash<std::string>{}(namespace_name);
  const auto found = roots_.find(namespace_name);
  if (found == roots_.end()) return match;
  match.node = found->second;
  const int32_t page_size = nodes_.page_size();
  const int64_t n_whole = ids.size / page_size;
  while (match.n_pages < n_whole) {
    const Int32Span rest = ids.from(static_cast<int64_t>(match.n_pages) * page_size);
    const int32_t child = nodes_.find_child(match.node, rest.values);
    if (child < 0) break;
    const RadixNode& n = nodes_[child];
    match.node = child;
    match.n_pages_in_node = nodes_.common_pages(child, rest);
    match.n_pages += match.n_pages_in_node;
    if (n.ref_count == 0) match.n_pages_unheld += match.n_pages_in_node;
    if (match.n_pages_in_node < n.n_pages) break;
  }
  return match;
}

void RadixCache::append_pages(const RadixMatch& match, std::vector<int32_t>& out) const {
  const size_t start = out.size();
  out.resize(start + static_cast<size_t>(match.n_pages));
  int32_t n = match.n_pages_in_node;
  auto end = out.end();
  for (int32_t node = match.node; node >= 0; node = nodes_[node].parent) {
    if (node != match.node) n = nodes_[node].n_pages;
    end -= n;
    std::copy_n(nodes_.pages(node).begin(), n, end);
  }
}

int32_t RadixCache::root_of(int32_t node) const {
  while (nodes_[node].parent >= 0) node = nodes_[node].parent;
  return node;
}

int32_t RadixCache::split(int32_t node, int32_t n_upper) {
  lru_.grow(nodes_.capacity() + 1);
  const int32_t upper = nodes_.split(node, n_upper);
  if (lru_.contains(node)) lru_.insert_newer(node, upper);
  return upper;
}

// Adds a holder to the nodes from `node` up to, not including, `stop`.
void RadixCache::hold_path(int32_t node, int32_t stop) {
  for (; node != stop; node = nodes_[node].parent) {
    RadixNode& n = nodes_[node];
    if (n.ref_count++ > 0 || n.n_pages == 0) continue;
    lru_.remove(node);
    n_cached_ -= n.n_pages;
  }
}

int32_t RadixCache::lock(const RadixMatch& match, const std::string& namespace_name) {
  int32_t node = match.node;
  if (node < 0) {
    node = nodes_.add_root(match.namespace_key);
    roots_.emplace(namespace_name, node);
    root_names_.emplace(node, namespace_name);
  } else if (match.n_pages_in_node < nodes_[node].n_pages) {
    node = split(node, match.n_pages_in_node);
  }
  hold_path(node, -1);
  return node;
}

void RadixCache::unlock(int32_t node) {
  int32_t root = node;
  for (; node >= 0; node = nodes_[node].parent) {  // deep nodes first: a parent is newer than its children
    root = node;
    RadixNode& n = nodes_[node];
    if (--n.ref_count > 0 || n.n_pages == 0) continue;
    lru_.push_newest(node);
    n_cached_ += n.n_pages;
  }
  remove_root_if_unused(root);
}

int32_t RadixCache::insert(int32_t node, const int32_t* ids, Int32Span pages, int64_t* n_recorded) {
  const int32_t held = node;
  const int64_t page_size = nodes_.page_size();
  Int32Span rest{ids, pages.size * page_size};
  while (rest.size > 0) {
    const int32_t child = nodes_.find_child(node, rest.values);
    if (child < 0) break;
    const int32_t n_common = nodes_.common_pages(child, rest);
    node = n_common < nodes_[child].n_pages ? split(child, n_common) : child;
    rest = rest.from(n_common * page_size);
  }
  const Int32Span fresh = pages.from(pages.size - rest.size / page_size);
  if (n_recorded != nullptr) *n_recorded = fresh.size;
  if (fresh.size == 0) {
    hold_path(node, held);
    return node;
  }
  const RadixNode& end = nodes_[node];
  // A leaf that only the caller holds grows in place: a request that decodes page after page stays one edge.
  if (node == held && end.first_child < 0 && end.n_pages > 0 && end.ref_count == 1) {
    nodes_.append(node, rest.values, fresh);
  } else {
    lru_.grow(nodes_.capacity() + 1);
    const int32_t leaf = nodes_.add_leaf(node, rest.values, fresh);
    nodes_[leaf].ref_count = 1;
    hold_path(node, held);
    node = leaf;
  }
  n_pages_ += fresh.size;
  return node;
}

bool RadixCache::record(int32_t page, Int32Span ids, int64_t logical_page_idx, const std::string& namespace_name) {
  const int64_t page_size = nodes_.page_size();
  if (logical_page_idx < 0 || (logical_page_idx + 1) * page_size > ids.size) return false;
  const Int32Span before = ids.head(logical_page_idx * page_size);
  const RadixMatch match = lookup(ids.head(before.size + page_size), namespace_name);
  if (match.n_pages != logical_page_idx) return false;
  const int32_t held = lock(match, namespace_name);
  try {
    unlock(insert(held, ids.values + before.size, {&page, 1}));
  } catch (...) {
    unlock(held);
    throw;
  }
  return true;
}

// Takes the last n pages off a leaf nobody holds.
void RadixCache::cut_tail(int32_t leaf, int32_t n, std::vector<int32_t>& out) {
  const RadixNode& node = nodes_[leaf];
  const int32_t n_left = node.n_pages - n;
  const Int32Span cut = nodes_.pages(leaf).from(n_left);
  out.insert(out.end(), cut.begin(), cut.end());
  // Only the first page cut can be asked for again before something else is missing.
  const int32_t* first_ids = nodes_.ids(leaf).values + static_cast<int64_t>(n_left) * nodes_.page_size();
  const uint64_t mark = eviction_mark(nodes_[root_of(leaf)].key, node.depth + n_left, first_ids);
  evicted_[mark % kEvictedSlots] = mark;
  if (n_left == 0) lru_.remove(leaf);
  nodes_.pop_pages(leaf, n);
  n_pages_ -= n;
  n_cached_ -= n;
}

void RadixCache::remove_root_if_unused(int32_t root) {
  if (nodes_[root].ref_count > 0 || nodes_[root].first_child >= 0) return;
  const auto name = root_names_.find(root);
  roots_.erase(name->second);
  root_names_.erase(name);
  nodes_.remove_root(root);
}

int64_t RadixCache::evict_lru(int64_t n_pages, std::vector<int32_t>& out) {
  int64_t n_evicted = 0;
  out.reserve(out.size() + static_cast<size_t>(std::clamp<int64_t>(n_pages, 0, n_cached_)));
  while (n_evicted < n_pages && lru_.count() > 0) {
    const int32_t leaf = lru_.oldest();
    const int32_t parent = nodes_[leaf].parent;
    const auto n = static_cast<int32_t>(std::min<int64_t>(n_pages - n_evicted, nodes_[leaf].n_pages));
    cut_tail(leaf, n, out);
    n_evicted += n;
    if (nodes_[parent].n_pages == 0) remove_root_if_unused(parent);
  }
  return n_evicted;
}

void RadixCache::evict(int32_t page, std::vector<int32_t>& out) {
  const int32_t node = nodes_.node_of(page);
  if (node < 0) return;
  // A holder of anything below holds this node too.
  if (nodes_[node].ref_count > 0) {
    throw Error("RadixCache.evict: page " + std::to_string(page) + " has ref_count " +
                std::to_string(nodes_[node].ref_count) + "; only pages with ref_count 0 can go");
  }
  const int32_t root = root_of(node);
  while (nodes_[node].first_child >= 0) {
    int32_t leaf = node;
    while (nodes_[leaf].first_child >= 0) leaf = nodes_[leaf].first_child;
    cut_tail(leaf, nodes_[leaf].n_pages, out);
  }
  const Int32Span pages = nodes_.pages(node);
  const auto kept = std::find(pages.begin(), pages.end(), page) - pages.begin();
  cut_tail(node, static_cast<int32_t>(pages.size - kept), out);
  remove_root_if_unused(root);
}

int32_t RadixCache::ref_count(int32_t page) const {
  const int32_t node = nodes_.node_of(page);
  return node < 0 ? 0 : nodes_[node].ref_count;
}

}  // namespace astrai
