// Reads tensors through the DLPack C exchange table of their type, and plain buffers through the buffer protocol.
#include "tensor_caster.h"

#include <cstring>
#include <string>

#include "dlpack.h"

namespace py = pybind11;

namespace astrai {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw py::type_error("astrai: " + what + "; tensors are float64/32/16, bfloat16, int64/32/16/8, uint8 or bool, have at most " +
                       std::to_string(kMaxDims) + " dimensions and lie on the CPU or a CUDA device");
}

// The table of the type, or null when it has none. The table belongs to the type and is never freed.
const dlpack::ExchangeApi* find_exchange_api(PyTypeObject* type) {
  static PyObject* const kAttribute = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  PyObject* found = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), kAttribute);
  if (found == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const auto capsule = py::reinterpret_steal<py::object>(found);
  if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kExchangeCapsule)) return nullptr;
  const auto* header = static_cast<const dlpack::ExchangeApiHeader*>(
      PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeCapsule));
  while (header != nullptr && header->version.major != dlpack::kMajorVersion) header = header->prev_api;
  const auto* api = reinterpret_cast<const dlpack::ExchangeApi*>(header);
  return api != nullptr && api->dltensor_from_py_object_no_sync != nullptr ? api : nullptr;
}

// The same, remembered for the type that had one last: nearly all arguments are of one type. The GIL guards it.
const dlpack::ExchangeApi* exchange_api_of(py::handle src) {
  static PyTypeObject* last_type = nullptr;  // held, so that no other type gets its address
  static const dlpack::ExchangeApi* last_api = nullptr;
  PyTypeObject* type = Py_TYPE(src.ptr());
  if (type == last_type) return last_api;
  const dlpack::ExchangeApi* api = find_exchange_api(type);
  if (api != nullptr) {
    Py_INCREF(type);
    Py_XDECREF(last_type);
    last_type = type;
    last_api = api;
  }
  return api;
}

DType dtype_from_dlpack(dlpack::DataType type) {
  if (type.lanes == 1) {
    switch (type.code << 8 | type.bits) {
      case dlpack::kDLFloat << 8 | 64:
        return DType::kFloat64;
      case dlpack::kDLFloat << 8 | 32:
        return DType::kFloat32;
      case dlpack::kDLFloat << 8 | 16:
        return DType::kFloat16;
      case dlpack::kDLBfloat << 8 | 16:
        return DType::kBFloat16;
      case dlpack::kDLInt << 8 | 64:
        return DType::kInt64;
      case dlpack::kDLInt << 8 | 32:
        return DType::kInt32;
      case dlpack::kDLInt << 8 | 16:
        return DType::kInt16;
      case dlpack::kDLInt << 8 | 8:
        return DType::kInt8;
      case dlpack::kDLUInt << 8 | 8:
        return DType::kUInt8;
      case dlpack::kDLBool << 8 | 8:
        return DType::kBool;
      default:
        break;
    }
  }
  refuse("a tensor has an element type with DLPack code " + std::to_string(type.code) + ", " +
         std::to_string(type.bits) + " bits, " + std::to_string(type.lanes) + " lanes");
}

// Pinned and managed memory are readable from both sides; the view says where torch says the tensor is.
int device_type_from_dlpack(int32_t device_type) {
  switch (device_type) {
    case dlpack::kDLCPU:
    case dlpack::kDLCUDAHost:
      return kCpu;
    case dlpack::kDLCUDA:
    case dlpack::kDLCUDAManaged:
      return kCuda;
    default:
      refuse("a tensor lies on a device with DLPack code " + std::to_string(device_type));
  }
}

void check_ndim(int ndim) {
  if (ndim > kMaxDims) refuse("a tensor has " + std::to_string(ndim) + " dimensions");
}

// Format characters of the struct module; 'l' and 'q' are both 8 bytes on the platforms we build for.
DType dtype_from_format(const char* format, py::ssize_t item_bytes) {
  const char* code = format == nullptr ? "B" : format;
  if (*code == '@' || *code == '=' || *code == '<') ++code;
  if (std::strlen(code) == 1) {
    const bool is_int = std::strchr("bhilq", *code) != nullptr;
    if (is_int && item_bytes == 8) return DType::kInt64;
    if (is_int && item_bytes == 4) return DType::kInt32;
    if (is_int && item_bytes == 2) return DType::kInt16;
    if (is_int && item_bytes == 1) return DType::kInt8;
    if (*code == 'B') return DType::kUInt8;
    if (*code == '?') return DType::kBool;
    if (*code == 'd') return DType::kFloat64;
    if (*code == 'f') return DType::kFloat32;
    if (*code == 'e') return DType::kFloat16;
  }
  refuse("a buffer has elements of format '" + std::string(format == nullptr ? "" : format) + "'");
}

}  // namespace

TensorBorrow::~TensorBorrow() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

bool TensorBorrow::load(py::handle src, TensorView& view) {
  const dlpack::ExchangeApi* api = exchange_api_of(src);
  if (api == nullptr) return load_buffer(src, view);
  dlpack::Tensor tensor{};
  if (api->dltensor_from_py_object_no_sync(src.ptr(), &tensor) != 0) {
    // Sparse tensors, meta tensors and the like have no memory to look at; the framework's own words are the cause.
    py::raise_from(PyExc_TypeError, "astrai: this tensor has no plain memory on the CPU or a CUDA device");
    throw py::error_already_set();
  }
  check_ndim(tensor.ndim);
  exchange_api_ = api;
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.device_type = device_type_from_dlpack(tensor.device.device_type);
  view.device_idx = view.device_type == kCuda ? tensor.device.device_id : 0;
  view.dtype = dtype_from_dlpack(tensor.dtype);
  view.ndim = tensor.ndim;
  int64_t row_major = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    view.shape[i] = tensor.shape[i];
    view.strides[i] = tensor.strides == nullptr ? row_major : tensor.strides[i];
    row_major *= tensor.shape[i];
  }
  return true;
}

bool TensorBorrow::load_buffer(py::handle src, TensorView& view) {
  if (PyObject_CheckBuffer(src.ptr()) == 0) return false;
  if (PyObject_GetBuffer(src.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) throw py::error_already_set();
  check_ndim(buffer_.ndim);
  view.data = buffer_.buf;
  view.dtype = dtype_from_format(buffer_.format, buffer_.itemsize);
  view.ndim = buffer_.ndim;
  view.is_readonly = buffer_.readonly != 0;
  for (int i = 0; i < buffer_.ndim; ++i) {
    view.shape[i] = buffer_.shape[i];
    if (buffer_.strides[i] % buffer_.itemsize != 0) refuse("a buffer has a stride that is no multiple of its element");
    view.strides[i] = buffer_.strides[i] / buffer_.itemsize;
  }
  return true;
}

void* TensorBorrow::current_stream(const TensorView& view) const {
  if (view.device_type != kCuda || exchange_api_ == nullptr) return nullptr;
  const auto* api = static_cast<const dlpack::ExchangeApi*>(exchange_api_);
  void* stream = nullptr;
  if (api->current_work_stream(dlpack::kDLCUDA, view.device_idx, &stream) != 0) throw py::error_already_set();
  return stream;
}

}  // namespace astrai
