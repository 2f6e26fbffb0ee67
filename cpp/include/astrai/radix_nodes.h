// The nodes of RadixCache: a page-aligned radix tree with compressed edges, its child index and the map page -> node.
// Structure only; who holds a node and what is evicted is decided by RadixCache, the only user.
//
//   root "tenant a" --[t0 .. t47 | pages 7 8 9]--> node --[.. | 4]--> leaf
//                                                       \-[.. | 12 13]--> leaf
//
// An edge belongs to the node it leads to and covers one or more whole pages: page_size token ids and one page index for
// each. Two edges below one node differ within their first page. A child is found through a table keyed by (parent, hash of
// the edge's first page); the hash only picks candidates, the token ids decide.
// Single-threaded. Nodes refer to each other by index; indices are used again after a removal.
// A part of <astrai/radix_cache.h>, not an interface: it may change with any version (docs/developer/abi.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "astrai/int32_span.h"

namespace astrai {

// One cache line, since every step of a lookup reads one.
struct alignas(64) RadixNode {
  int32_t parent = -1;        // -1 for a root
  int32_t first_child = -1;
  int32_t prev_sibling = -1;
  int32_t next_sibling = -1;
  int32_t next_in_bucket = -1;  // chain of the child table
  int32_t ref_count = 0;        // live holders of this node or of anything below it
  int32_t depth = 0;            // pages from the root to the start of this edge
  int32_t begin = 0;            // first live page of the edge inside `edge`
  int32_t n_pages = 0;          // live pages; 0 for a root
  int32_t capacity = 0;         // pages that `edge` has room for
  uint64_t key = 0;             // hash of the edge's first page; for a root the hash of its namespace
  std::unique_ptr<int32_t[]> edge;  // [capacity * page_size] token ids, then [capacity] page indices
};

class RadixNodes {
 public:
  // hash_bits: how many bits of a page's hash the child table uses; 0 makes all siblings collide (for tests).
  // Throws std::invalid_argument unless page_size >= 1 and 0 <= hash_bits <= 64.
  RadixNodes(int32_t page_size, int hash_bits);
  // Nodes own their edges: what holds a tree is moved, never copied.
  RadixNodes(RadixNodes&&) = default;
  RadixNodes& operator=(RadixNodes&&) = default;

  const RadixNode& operator[](int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  RadixNode& operator[](int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  int32_t page_size() const { return page_size_; }
  // Indices in use are below this.
  int32_t capacity() const { return static_cast<int32_t>(nodes_.size()); }
  // The node whose edge holds the page, -1 when no node does.
  int32_t node_of(int32_t page) const;
  Int32Span ids(int32_t node) const;    // [n_pages * page_size] token ids of the edge
  Int32Span pages(int32_t node) const;  // [n_pages] page indices of the edge
  int32_t n_edges() const { return n_in_table_; }
  int32_t end_depth(int32_t node) const { return (*this)[node].depth + (*this)[node].n_pages; }

  // O(page_size) for a table without collisions. The child whose edge starts with the page_size ids at `ids`, or -1.
  int32_t find_child(int32_t parent, const int32_t* ids) const;
  // How many leading whole pages the edge and `ids` have in common.
  int32_t common_pages(int32_t node, Int32Span ids) const;
  // Hash of one page of ids; equal ids have equal hashes.
  uint64_t hash_page(const int32_t* ids) const;

  int32_t add_root(uint64_t key);
  // A new leaf below parent with n_pages >= 1 pages. Precondition: no child starts with the same page.
  // Throws std::invalid_argument, before any change, when a page is negative, in the tree already, or listed twice.
  int32_t add_leaf(int32_t parent, const int32_t* ids, Int32Span pages);
  // Lengthens a leaf's edge. Amortised O(pages added). Throws as add_leaf does.
  void append(int32_t leaf, const int32_t* ids, Int32Span pages);
  // Cuts the edge after its first n_upper pages, 0 < n_upper < n_pages. `node` keeps its index and the lower part; returns
  // the new node above it, with the same ref_count.
  int32_t split(int32_t node, int32_t n_upper);
  // Drops the last n pages of a leaf's edge; with the last page the node goes too.
  void pop_pages(int32_t leaf, int32_t n);
  // Removes a root without children.
  void remove_root(int32_t root);

  // O(tree). Throws Error when links, table or page map disagree.
  void check_integrity() const;
  int64_t state_bytes() const;

 private:
  int32_t take_index();
  size_t edge_size(int32_t capacity) const {
    return static_cast<size_t>(capacity) * (static_cast<size_t>(page_size_) + 1);
  }
  void move_edge(RadixNode& node, std::unique_ptr<int32_t[]> edge, int32_t capacity);
  void shrink_edge(RadixNode& node);
  void copy_pages(RadixNode& node, int32_t at, const int32_t* ids, Int32Span pages) const;
  void map_pages(Int32Span pages, int32_t node);
  void map_new_pages(Int32Span pages, int32_t node);
  void link_child(int32_t parent, int32_t child);
  void unlink_child(int32_t child);
  size_t bucket_of(int32_t parent, uint64_t key) const;
  void table_insert(int32_t node);
  void table_remove(int32_t node);
  void table_grow();

  int32_t page_size_;
  uint64_t hash_mask_;
  std::vector<RadixNode> nodes_;
  std::vector<int32_t> free_indices_;
  std::vector<int32_t> page_node_;  // [highest page seen + 1] node of each page, -1
  std::vector<int32_t> buckets_;    // [power of two] first node of each chain, -1
  int32_t n_in_table_ = 0;
  int64_t edge_capacity_ = 0;       // sum of capacity over the nodes
};

}  // namespace astrai
