// pybind11 casters from Python tensors to astrai::TensorView, without a copy and without a dependency on torch:
//   TensorView                 any object whose type has `__dlpack_c_exchange_api__` (torch >= 2.10), or a buffer (numpy)
//   std::optional<TensorView>  the same, or None
//   StreamedTensor             the view and the CUDA stream its framework works on: the first argument of a CUDA op
// A view lives as long as the call it is an argument of. An object of another kind makes pybind11 raise TypeError;
// a tensor of a kind that no function takes (complex, sparse, another device) raises TypeError naming what it is.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "astrai/tensor_view.h"

namespace astrai {

struct StreamedTensor {
  TensorView view;
  void* stream = nullptr;  // cudaStream_t that is current on view's device; null on the CPU and for plain buffers
};

// Borrows a view of one Python object, and its buffer export where there is one; releases that when destroyed.
class TensorBorrow {
 public:
  TensorBorrow() = default;
  TensorBorrow(const TensorBorrow&) = delete;
  TensorBorrow& operator=(const TensorBorrow&) = delete;
  ~TensorBorrow();

  // False when src is neither a tensor nor a buffer; throws TypeError when it is one that has no TensorView.
  bool load(pybind11::handle src, TensorView& view);
  // The stream of the framework that src belongs to; call after load() returned true.
  void* current_stream(const TensorView& view) const;

 private:
  bool load_buffer(pybind11::handle src, TensorView& view);

  const void* exchange_api_ = nullptr;  // dlpack::ExchangeApi of src's type
  Py_buffer buffer_ = {};               // .obj is null when no buffer is held
};

}  // namespace astrai

namespace pybind11::detail {

template <>
struct type_caster<astrai::TensorView> {
  PYBIND11_TYPE_CASTER(astrai::TensorView, const_name("Tensor"));
  bool load(handle src, bool) { return borrow_.load(src, value); }

 private:
  astrai::TensorBorrow borrow_;
};

template <>
struct type_caster<std::optional<astrai::TensorView>> {
  PYBIND11_TYPE_CASTER(std::optional<astrai::TensorView>, const_name("Tensor | None"));
  bool load(handle src, bool) {
    if (src.is_none()) return true;
    return borrow_.load(src, value.emplace());
  }

 private:
  astrai::TensorBorrow borrow_;
};

template <>
struct type_caster<astrai::StreamedTensor> {
  PYBIND11_TYPE_CASTER(astrai::StreamedTensor, const_name("Tensor"));
  bool load(handle src, bool) {
    if (!borrow_.load(src, value.view)) return false;
    value.stream = borrow_.current_stream(value.view);
    return true;
  }

 private:
  astrai::TensorBorrow borrow_;
};

}  // namespace pybind11::detail
