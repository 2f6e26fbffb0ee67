// Messages follow one form, so that a reader finds the operation, the argument, what came and what is accepted.
#include "astrai/shape_check.h"

#include <cstring>
#include <stdexcept>
#include <vector>

namespace astrai {
namespace {

std::string device_string(int device_type, int device_idx) {
  if (device_type == kCpu) return "the CPU";
  return device_idx < 0 ? "a CUDA device" : "cuda:" + std::to_string(device_idx);
}

template <typename Range, typename ToString>
std::string join(const Range& items, ToString to_string) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ", ";
    text += to_string(item);
  }
  return text;
}

}  // namespace

std::string shape_string(const TensorView& t) {
  const std::vector<int64_t> sizes(t.shape, t.shape + t.ndim);
  return "[" + join(sizes, [](int64_t size) { return std::to_string(size); }) + "]";
}

ShapeCheck& ShapeCheck::shape(const char* arg, const TensorView& t, std::initializer_list<Dim> dims) {
  const int n_known = n_sizes_;
  bool matches = t.ndim == static_cast<int>(dims.size());
  for (int i = 0; matches && i < t.ndim; ++i) {
    const Dim& dim = dims.begin()[i];
    const int64_t* bound = dim.symbol == nullptr ? &dim.size : find(dim.symbol);
    if (bound == nullptr) {
      if (n_sizes_ == kMaxSizes) throw std::logic_error(std::string(op_) + ": more named sizes than ShapeCheck holds");
      sizes_[static_cast<size_t>(n_sizes_++)] = {dim.symbol, t.shape[i]};
    } else {
      matches = *bound == t.shape[i];
    }
  }
  if (!matches) {
    n_sizes_ = n_known;  // what this tensor bound is no expectation of it
    const std::string expected = join(dims, [this](const Dim& dim) {
      if (dim.symbol == nullptr) return std::to_string(dim.size);
      const int64_t* bound = find(dim.symbol);
      return bound == nullptr ? std::string(dim.symbol) : std::string(dim.symbol) + "=" + std::to_string(*bound);
    });
    fail(std::string(arg) + " has shape " + shape_string(t) + "; expected [" + expected + "]");
  }
  return *this;
}

ShapeCheck& ShapeCheck::dtype(const char* arg, const TensorView& t, std::initializer_list<DType> accepted) {
  for (DType one : accepted) {
    if (t.dtype == one) return *this;
  }
  fail(std::string(arg) + " is " + dtype_name(t.dtype) + "; accepted: " + join(accepted, dtype_name));
}

ShapeCheck& ShapeCheck::device(const char* arg, const TensorView& t, int device_type, int device_idx) {
  if (t.device_type != device_type || (device_idx >= 0 && t.device_idx != device_idx)) {
    fail(std::string(arg) + " is on " + device_string(t.device_type, t.device_idx) + "; expected " +
         device_string(device_type, device_idx));
  }
  return *this;
}

ShapeCheck& ShapeCheck::contiguous_from(int first_dim, const char* arg, const TensorView& t) {
  if (!t.is_contiguous_from(first_dim)) {
    const std::vector<int64_t> strides(t.strides, t.strides + t.ndim);
    fail(std::string(arg) + " of shape " + shape_string(t) + " has strides [" +
         join(strides, [](int64_t stride) { return std::to_string(stride); }) + "]; dimensions from " +
         std::to_string(first_dim) + " on must be contiguous, call .contiguous() first");
  }
  return *this;
}

ShapeCheck& ShapeCheck::writable(const char* arg, const TensorView& t) {
  if (t.is_readonly) fail(std::string(arg) + " is a read-only buffer; the operation writes to it");
  return *this;
}

int64_t ShapeCheck::size(const char* symbol) const {
  const int64_t* bound = find(symbol);
  if (bound == nullptr) throw std::logic_error(std::string(op_) + ": size '" + symbol + "' is not bound by any shape");
  return *bound;
}

void ShapeCheck::fail(const std::string& message) const { throw std::invalid_argument(std::string(op_) + ": " + message); }

const int64_t* ShapeCheck::find(const char* symbol) const {
  for (int i = 0; i < n_sizes_; ++i) {
    const auto& [name, size] = sizes_[static_cast<size_t>(i)];
    if (std::strcmp(name, symbol) == 0) return &size;
  }
  return nullptr;
}

}  // namespace astrai
