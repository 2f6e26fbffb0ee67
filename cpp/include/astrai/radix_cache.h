// Exact, page-aligned prefix matching: which pages hold the KV of which token ids, who holds them, and which go first.
//
// Pages enter by insert() or record(), whole and already written. A page is reachable from the root of its namespace along
// exactly one path and means "KV of these page_size ids after those before them"; matching compares token ids, never hashes.
// A holder (a live request) holds a node, and with it every page from the root to the end of that node's edge. Nodes nobody
// holds are cached: they stand in lru_, each parent newer than its children, so that the oldest one is always a leaf and
// eviction cuts pages off the end of the least recently used leaf.
//
//   lock(match) -> node        hold a matched prefix            evict_lru(n)   the n pages used longest ago go
//   insert(node, ids, pages)   record pages below it, hold on   evict(page)    this page and all below it go
//   unlock(node)               let go: newest in the order of use
//
// Page numbers are the caller's: the tree copies ids and numbers, and never frees what it evicts. Any page size >= 1.
// Single-threaded. Movable, not copyable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "astrai/int32_span.h"
#include "astrai/lru_list.h"
#include "astrai/radix_nodes.h"

namespace astrai {

// Why a lookup ended where it did.
enum class MissReason {
  kEndOfPrompt,     // every whole page of the prompt was found
  kTokenDiffers,    // another continuation is cached; miss_position is the first differing token
  kPageBoundary,    // what is cached ends here
  kEvicted,         // the next page was cached and has been evicted (remembered for the last few thousand evictions)
  kOtherNamespace,  // nothing found here, but another namespace has the first page (64 namespaces are looked at)
  kEmptyCache,      // nothing is cached under this namespace
};

// A position in the tree; valid until the tree changes.
struct RadixMatch {
  uint64_t namespace_key = 0;    // hash of the namespace's name
  int32_t node = -1;             // deepest node with a matched page; else the namespace's root, -1 if it has none
  int32_t n_pages_in_node = 0;   // matched pages of that node's edge
  int32_t n_pages = 0;           // matched pages in all
  int32_t n_pages_unheld = 0;    // of those, pages that nobody holds and eviction could take
};

struct RadixMiss {
  MissReason reason;
  int64_t position;  // tokens: the first differing one for kTokenDiffers, else the number of matched tokens
};

// One page of the tree, for display.
struct RadixPageView {
  int32_t page;
  int32_t parent_page;  // -1 for the first page of a prompt
  int32_t ref_count;
  uint64_t hash;        // page_hash() chained from the root
  std::string namespace_name;
};

// One edge of the tree, for display.
struct RadixEdgeView {
  int32_t node;    // names the edge that leads to it
  int32_t parent;  // -1 for the first edge of a prompt
  int32_t ref_count;
  int32_t n_pages;
  std::vector<int32_t> token_ids;  // the first ones of the edge
  std::string namespace_name;
};

// Rolling hash h * 31 + id (mod 2^64) of page page_idx of ids, starting from parent. For display; no lookup uses it.
// Throws std::invalid_argument if ids has no such whole page.
uint64_t page_hash(Int32Span ids, int64_t page_idx, int32_t page_size, uint64_t parent = 0);

class RadixCache {
 public:
  // hash_bits below 64 forces collisions in the child table (for tests); it never changes a result. Throws
  // std::invalid_argument unless page_size >= 1 and 0 <= hash_bits <= 64.
  explicit RadixCache(int32_t page_size, int hash_bits = 64);

  // Longest cached prefix of ids in whole pages. Changes nothing, not even the order of use.
  // O(matched ids).
  RadixMatch lookup(Int32Span ids, const std::string& namespace_name = "") const;
  // Why `match`, the result of lookup() with the same arguments, is not longer. Precondition: the tree has not changed since.
  RadixMiss explain_miss(const RadixMatch& match, Int32Span ids) const;
  // Appends the matched pages to out, the first page of the prompt first. Precondition as above. O(pages).
  void append_pages(const RadixMatch& match, std::vector<int32_t>& out) const;

  // Holds a match and returns the held node, to be given to unlock() once. May split the edge at the match's end.
  // Precondition: the match came from lookup() in the same namespace, and the tree has not changed since. An empty match is
  // held at the root. O(edges of the path + pages of the edge that is split).
  int32_t lock(const RadixMatch& match, const std::string& namespace_name = "");
  // Precondition: `node` came from lock() or insert() and was not given to either since. O(edges of the path).
  void unlock(int32_t node);
  // Records `pages` with their page_size ids each below the held node `node`; the caller's hold moves to the returned node,
  // at the end of them. Where the tree has a page with the same ids it keeps its own. *n_recorded (if given) gets the
  // number of pages that are in the tree now and were not before: always the last ones of `pages`.
  // Throws std::invalid_argument when one of those is in the tree elsewhere. Precondition: `ids` has page_size ids for each
  // page. O(ids), amortised.
  int32_t insert(int32_t node, const int32_t* ids, Int32Span pages, int64_t* n_recorded = nullptr);

  // Records one page: page logical_page_idx of ids. True if the tree holds it now and did not before. False, and nothing
  // changed, when that page is not whole, its predecessor is not in the tree, or the tree has a page in this place.
  // O(ids).
  bool record(int32_t page, Int32Span ids, int64_t logical_page_idx, const std::string& namespace_name = "");

  // Evicts up to n_pages unheld pages, least recently used first, appends them to out and returns how many.
  // O(pages evicted).
  int64_t evict_lru(int64_t n_pages, std::vector<int32_t>& out);
  // Evicts a page with everything below it, appending them to out; nothing happens when the tree has no such page.
  // Throws Error, and nothing changed, when one of them is held. O(pages below).
  void evict(int32_t page, std::vector<int32_t>& out);

  bool has_page(int32_t page) const { return nodes_.node_of(page) >= 0; }
  // Live holders of a page, 0 if none or not in the tree.
  int32_t ref_count(int32_t page) const;
  // page_hash() of the page chained over all pages before it. O(ids before it). Throws std::invalid_argument if the tree has no such page.
  uint64_t hash_of(int32_t page) const;
  // At most max_pages pages, parents first.
  std::vector<RadixPageView> snapshot(int64_t max_pages) const;
  // At most max_edges edges with up to max_ids token ids each, parents first, siblings newest first. O(namespaces + result).
  std::vector<RadixEdgeView> edges(int64_t max_edges, int64_t max_ids) const;

  int32_t page_size() const { return nodes_.page_size(); }
  int64_t n_pages() const { return n_pages_; }      // in the tree
  int64_t n_cached() const { return n_cached_; }    // of them unheld
  int64_t n_edges() const { return nodes_.n_edges(); }
  int64_t n_namespaces() const { return static_cast<int64_t>(roots_.size()); }
  // Precondition: `node` is -1 or held. Pages from the root to the node's end.
  int64_t depth_of(int32_t node) const { return node < 0 ? 0 : nodes_.end_depth(node); }
  // O(tree). Throws Error naming both sides. `held_nodes`, when given, are all nodes that live holders hold.
  void check_integrity(const std::vector<int32_t>* held_nodes = nullptr) const;
  int64_t state_bytes() const;

 private:
  int32_t root_of(int32_t node) const;
  int32_t split(int32_t node, int32_t n_upper);
  void hold_path(int32_t node, int32_t stop);
  void cut_tail(int32_t leaf, int32_t n, std::vector<int32_t>& out);
  void remove_root_if_unused(int32_t root);
  uint64_t eviction_mark(uint64_t namespace_key, int64_t depth, const int32_t* page_ids) const;
  bool is_in_another_namespace(int32_t root, const int32_t* page_ids) const;
  int64_t first_difference(const RadixMatch& match, Int32Span rest) const;

  RadixNodes nodes_;
  LruList lru_;                                     // nodes with pages and ref_count 0
  std::unordered_map<std::string, int32_t> roots_;  // namespace -> root; none for an empty namespace nobody holds
  std::unordered_map<int32_t, std::string> root_names_;  // the inverse
  int64_t n_pages_ = 0;
  int64_t n_cached_ = 0;
  std::vector<uint64_t> evicted_;  // [kEvictedSlots] marks of evicted pages, each in the slot its low bits name
};

}  // namespace astrai
