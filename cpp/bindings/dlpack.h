// The part of the DLPack ABI (major version 1) that the bindings read, declared from the published specification,
// https://dmlc.github.io/dlpack/latest/c_api.html: the plain tensor, and the table of C functions that a tensor type
// carries as `__dlpack_c_exchange_api__` (torch >= 2.10). Nothing here calls Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace astrai::dlpack {

constexpr uint32_t kMajorVersion = 1;
constexpr const char* kExchangeCapsule = "dlpack_exchange_api";

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Device {
  int32_t device_type;  // see DeviceCode
  int32_t device_id;
};
enum DeviceCode : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };

struct DataType {
  uint8_t code;  // see TypeCode
  uint8_t bits;
  uint16_t lanes;
};
enum TypeCode : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;        // [ndim]
  int64_t* strides;      // [ndim] in elements; null means row-major before DLPack 1.2
  uint64_t byte_offset;  // from data to the first element
};

struct ExchangeApiHeader {
  Version version;
  ExchangeApiHeader* prev_api;  // an older table of the same producer, or null
};

// The functions return 0, or -1 with a Python exception set; all of them need the GIL.
struct ExchangeApi {
  ExchangeApiHeader header;
  void* managed_tensor_allocator;               // not used here
  void* managed_tensor_from_py_object_no_sync;  // not used here
  void* managed_tensor_to_py_object_no_sync;    // not used here
  // Fills a caller's Tensor with a borrowed view of py_object; null when the producer has no such function.
  int (*dltensor_from_py_object_no_sync)(void* py_object, Tensor* out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out_stream);
};

static_assert(sizeof(void*) == 8, "the layout below is that of 64-bit platforms");
static_assert(sizeof(Device) == 8 && sizeof(DataType) == 4, "DLPack ABI");
static_assert(offsetof(Tensor, data) == 0 && offsetof(Tensor, device) == 8 && offsetof(Tensor, ndim) == 16 &&
                  offsetof(Tensor, dtype) == 20 && offsetof(Tensor, shape) == 24 && offsetof(Tensor, strides) == 32 &&
                  offsetof(Tensor, byte_offset) == 40 && sizeof(Tensor) == 48,
              "DLPack ABI: DLTensor");
static_assert(offsetof(ExchangeApiHeader, prev_api) == 8 && sizeof(ExchangeApiHeader) == 16, "DLPack ABI");
static_assert(offsetof(ExchangeApi, managed_tensor_allocator) == 16 &&
                  offsetof(ExchangeApi, dltensor_from_py_object_no_sync) == 40 &&
                  offsetof(ExchangeApi, current_work_stream) == 48 && sizeof(ExchangeApi) == 56,
              "DLPack ABI: DLPackExchangeAPI");

}  // namespace astrai::dlpack
