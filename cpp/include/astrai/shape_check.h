// ShapeCheck: the checks a launcher makes once before it hands raw pointers to a kernel. Named sizes ("T", "H", "D") are
// bound by the first tensor that shows them and must agree in every later one. All failures throw
// std::invalid_argument with the operation, the argument, what it got and what it accepts.
//
//   ShapeCheck check("rotary_emb");
//   check.shape("x", x, {"T", "H", "D"}).dtype("x", x, {DType::kBFloat16, DType::kFloat16});
//   check.shape("freqs", freqs, {"T", check.size("D") / 2, 2});
// A part of the operations (<astrai/ops.h>), not an interface: it may change with any version (docs/developer/abi.md).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "astrai/tensor_view.h"

namespace astrai {

class ShapeCheck {
 public:
  // One dimension of an expected shape: a named size or a number.
  struct Dim {
    Dim(const char* symbol) : symbol(symbol), size(-1) {}  // NOLINT: implicit, so that shapes read as lists
    Dim(int64_t size) : symbol(nullptr), size(size) {}     // NOLINT
    Dim(int size) : symbol(nullptr), size(size) {}         // NOLINT
    const char* symbol;                                    // null for a number
    int64_t size;
  };

  // op: a string literal, as are the symbols.
  explicit ShapeCheck(const char* op) : op_(op) {}

  // t has exactly these dimensions; binds the symbols that are new.
  ShapeCheck& shape(const char* arg, const TensorView& t, std::initializer_list<Dim> dims);
  // t's element type is one of those accepted.
  ShapeCheck& dtype(const char* arg, const TensorView& t, std::initializer_list<DType> accepted);
  // t lies on this device; device_idx -1 accepts every index.
  ShapeCheck& device(const char* arg, const TensorView& t, int device_type, int device_idx = -1);
  // The dimensions from first_dim on are row-major without gaps.
  ShapeCheck& contiguous_from(int first_dim, const char* arg, const TensorView& t);
  // t may be written to.
  ShapeCheck& writable(const char* arg, const TensorView& t);
  // A condition of the operation's own: throws "op: message" when it is false. message: text, or a function that makes it;
  // a message that is put together costs more than the whole check, and a call that fits needs none.
  template <typename Message>
  ShapeCheck& require(bool condition, const Message& message) {
    if (condition) return *this;
    if constexpr (std::is_invocable_v<const Message&>) {
      fail(message());
    } else {
      fail(message);
    }
  }

  // The value of a bound symbol; throws std::logic_error for one that no shape has shown.
  int64_t size(const char* symbol) const;

 private:
  [[noreturn]] void fail(const std::string& message) const;
  const int64_t* find(const char* symbol) const;

  static constexpr int kMaxSizes = 12;

  const char* op_;
  std::array<std::pair<const char*, int64_t>, kMaxSizes> sizes_;  // bound symbols, the first n_sizes_
  int n_sizes_ = 0;
};

// "[2, 3, 64]", for messages.
std::string shape_string(const TensorView& t);

}  // namespace astrai
