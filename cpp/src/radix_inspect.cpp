// What RadixCache tells about itself: miss reasons, hashes, the snapshot for the inspector, and the integrity check.
#include <algorithm>
#include <functional>
#include <stdexcept>

#include "astrai/error.h"
#include "astrai/radix_cache.h"

namespace astrai {
namespace {

// Children whose first page is compared to find the first differing token; more would make a miss cost O(children).
constexpr int kSiblingsCompared = 8;
constexpr int kNamespacesLookedAt = 64;

}  // namespace

uint64_t page_hash(Int32Span ids, int64_t page_idx, int32_t page_size, uint64_t parent) {
  if (page_size < 1 || page_idx < 0 || page_idx >= ids.size / page_size) {
    throw std::invalid_argument("page_hash: page " + std::to_string(page_idx) + " of " + std::to_string(page_size) +
                                " tokens is not a whole page of " + std::to_string(ids.size) + " token ids");
  }
  uint64_t hash = parent;
  for (const int32_t id : ids.from(page_idx * page_size).head(page_size)) hash = hash * 31 + static_cast<uint64_t>(id);
  return hash;
}

uint64_t RadixCache::eviction_mark(uint64_t namespace_key, int64_t depth, const int32_t* page_ids) const {
  uint64_t mark = namespace_key ^ (static_cast<uint64_t>(depth) * 0x9E3779B97F4A7C15ull);
  for (int32_t i = 0; i < nodes_.page_size(); ++i) mark = (mark ^ static_cast<uint64_t>(page_ids[i])) * 0x100000001B3ull;
  mark ^= mark >> 32;
  return mark | 1;  // 0 marks an empty slot
}

bool RadixCache::is_in_another_namespace(int32_t root, const int32_t* page_ids) const {
  int n_left = kNamespacesLookedAt;
  for (auto it = roots_.begin(); it != roots_.end() && n_left > 0; ++it, --n_left) {
    if (it->second != root && nodes_.find_child(it->second, page_ids) >= 0) return true;
  }
  return false;
}

// How far `rest`, the ids after the match, agrees with what is cached there; -1 when nothing is cached there.
int64_t RadixCache::first_difference(const RadixMatch& match, Int32Span rest) const {
  const RadixNode& node = nodes_[match.node];
  if (match.n_pages_in_node < node.n_pages) {
    const Int32Span edge = nodes_.ids(match.node).from(static_cast<int64_t>(match.n_pages_in_node) * page_size());
    return std::mismatch(rest.begin(), rest.end(), edge.begin(), edge.end()).first - rest.begin();
  }
  int64_t furthest = -1;
  int n_left = kSiblingsCompared;
  for (int32_t child = node.first_child; child >= 0 && n_left > 0; child = nodes_[child].next_sibling, --n_left) {
    const Int32Span edge = nodes_.ids(child);
    furthest = std::max<int64_t>(
        furthest, std::mismatch(rest.begin(), rest.end(), edge.begin(), edge.end()).first - rest.begin());
  }
  return furthest;
}

RadixMiss RadixCache::explain_miss(const RadixMatch& match, Int32Span ids) const {
  const int64_t n_matched = static_cast<int64_t>(match.n_pages) * page_size();
  if (n_matched + page_size() > ids.size) return {MissReason::kEndOfPrompt, n_matched};
  const Int32Span rest = ids.from(n_matched);
  const uint64_t mark = eviction_mark(match.namespace_key, match.n_pages, rest.values);
  if (evicted_[mark % evicted_.size()] == mark) return {MissReason::kEvicted, n_matched};
  if (match.n_pages == 0) {
    if (is_in_another_namespace(match.node, rest.values)) return {MissReason::kOtherNamespace, 0};
    if (match.node < 0 || nodes_[match.node].first_child < 0) return {MissReason::kEmptyCache, 0};
  }
  const int64_t n_agreeing = first_difference(match, rest);
  if (n_agreeing < 0) return {MissReason::kPageBoundary, n_matched};
  return {MissReason::kTokenDiffers, n_matched + n_agreeing};
}

uint64_t RadixCache::hash_of(int32_t page) const {
  const int32_t holder = nodes_.node_of(page);
  if (holder < 0) {
    throw std::invalid_argument("RadixCache.hash_of: page " + std::to_string(page) + " is not in the tree");
  }
  std::vector<int32_t> path;
  for (int32_t node = holder; node >= 0; node = nodes_[node].parent) path.push_back(node);
  uint64_t hash = 0;
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    const Int32Span pages = nodes_.pages(*node);
    for (int64_t i = 0; i < pages.size; ++i) {
      hash = page_hash(nodes_.ids(*node), i, page_size(), hash);
      if (pages[i] == page) return hash;
    }
  }
  throw Error("RadixCache.hash_of: page " + std::to_string(page) + " is mapped to a node that does not hold it");
}

std::vector<RadixPageView> RadixCache::snapshot(int64_t max_pages) const {
  struct Visit {
    int32_t node;
    int32_t parent_page;
    uint64_t hash;
  };
  std::vector<RadixPageView> views;
  for (const auto& [name, root] : roots_) {
    std::vector<Visit> stack{{root, -1, 0}};
    while (!stack.empty()) {
      Visit at = stack.back();
      stack.pop_back();
      const Int32Span pages = nodes_.pages(at.node);
      for (int64_t i = 0; i < pages.size; ++i) {
        if (static_cast<int64_t>(views.size()) >= max_pages) return views;
        at.hash = page_hash(nodes_.ids(at.node), i, page_size(), at.hash);
        views.push_back({pages[i], at.parent_page, nodes_[at.node].ref_count, at.hash, name});
        at.parent_page = pages[i];
      }
      for (int32_t child = nodes_[at.node].first_child; child >= 0; child = nodes_[child].next_sibling) {
        stack.push_back({child, at.parent_page, at.hash});
      }
    }
  }
  return views;
}

std::vector<RadixEdgeView> RadixCache::edges(int64_t max_edges, int64_t max_ids) const {
  std::vector<RadixEdgeView> views;
  for (const auto& [name, root] : roots_) {
    int32_t node = nodes_[root].first_child;
    while (node >= 0) {
      if (static_cast<int64_t>(views.size()) >= max_edges) return views;
      const RadixNode& n = nodes_[node];
      const Int32Span ids = nodes_.ids(node);
      const int64_t n_ids = std::clamp<int64_t>(max_ids, 0, ids.size);
      views.push_back({node, n.parent == root ? -1 : n.parent, n.ref_count, n.n_pages,
                       {ids.values, ids.values + n_ids}, name});
      if (n.first_child >= 0) {
        node = n.first_child;
        continue;
      }
      while (node != root && nodes_[node].next_sibling < 0) node = nodes_[node].parent;
      node = node == root ? -1 : nodes_[node].next_sibling;
    }
  }
  return views;
}

void RadixCache::check_integrity(const std::vector<int32_t>* held_nodes) const {
  nodes_.check_integrity();
  lru_.check_integrity();
  const auto capacity = static_cast<size_t>(nodes_.capacity());
  std::vector<int32_t> use_rank(capacity, -1);
  int32_t rank = 0;
  for (int32_t node = lru_.oldest(); node >= 0; node = lru_.newer(node)) use_rank[static_cast<size_t>(node)] = rank++;
  std::vector<int32_t> holders(capacity, 0);
  if (held_nodes != nullptr) {
    for (int32_t node : *held_nodes) {
      for (; node >= 0; node = nodes_[node].parent) ++holders[static_cast<size_t>(node)];
    }
  }
  int64_t n_pages = 0;
  int64_t n_cached = 0;
  for (int32_t node = 0; node < nodes_.capacity(); ++node) {
    const RadixNode& n = nodes_[node];
    const int32_t node_rank = use_rank[static_cast<size_t>(node)];
    const bool is_cached = n.n_pages > 0 && n.ref_count == 0;
    n_pages += n.n_pages;
    if (is_cached) n_cached += n.n_pages;
    if (is_cached != (node_rank >= 0)) {
      throw Error("RadixCache: node " + std::to_string(node) + " has ref_count " + std::to_string(n.ref_count) + " and " +
                  std::to_string(n.n_pages) + " pages but is " + (node_rank >= 0 ? "" : "not ") + "in the order of use");
    }
    if (held_nodes != nullptr && n.ref_count != holders[static_cast<size_t>(node)]) {
      throw Error("RadixCache: node " + std::to_string(node) + " has ref_count(" + std::to_string(n.ref_count) +
                  ") != live holders(" + std::to_string(holders[static_cast<size_t>(node)]) + ")");
    }
    const int32_t parent_rank = n.parent < 0 ? -1 : use_rank[static_cast<size_t>(n.parent)];
    if (parent_rank >= 0 && parent_rank < node_rank) {
      throw Error("RadixCache: node " + std::to_string(node) + " at place " + std::to_string(node_rank) +
                  " of the order of use is newer than its parent at " + std::to_string(parent_rank));
    }
    if (parent_rank >= 0 && n.ref_count > 0) {
      throw Error("RadixCache: node " + std::to_string(node) + " is held but its parent is not");
    }
  }
  if (n_pages != n_pages_ || n_cached != n_cached_) {
    throw Error("RadixCache: pages in edges(" + std::to_string(n_pages) + ", cached " + std::to_string(n_cached) +
                ") != counted(" + std::to_string(n_pages_) + ", cached " + std::to_string(n_cached_) + ")");
  }
  for (const auto& [name, root] : roots_) {
    if (nodes_[root].ref_count == 0 && nodes_[root].first_child < 0) {
      throw Error("RadixCache: namespace '" + name + "' is empty and unheld but still has root " + std::to_string(root));
    }
  }
}

int64_t RadixCache::state_bytes() const {
  return nodes_.state_bytes() + lru_.state_bytes() + static_cast<int64_t>(evicted_.capacity() * sizeof(uint64_t));
}

}  // namespace astrai
