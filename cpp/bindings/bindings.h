// One bind_* function per area; module.cpp calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace astrai::bindings {

void bind_allocator(pybind11::module_& m);  // Int32Array, Allocator, ReqToTokenPool
void bind_attn_paged_decode(pybind11::module_& m);
void bind_attn_paged_prefill(pybind11::module_& m);
void bind_batch_plan(pybind11::module_& m);
void bind_cpu_ops(pybind11::module_& m);  // linear layers and the rest of a decode step on the CPU
void bind_dequantize(pybind11::module_& m);  // rows of GGUF files
void bind_fused_ops(pybind11::module_& m);  // norms, activations, embedding, rotary_store_kv on a GPU
void bind_http_chunks(pybind11::module_& m);
void bind_moe_ops(pybind11::module_& m);  // a mixture of experts on a GPU
void bind_ops(pybind11::module_& m);  // what was built, rotary_emb, store_kv
void bind_page_pool(pybind11::module_& m);
void bind_pinned_buffer(pybind11::module_& m);
void bind_radix_cache(pybind11::module_& m);
void bind_sampling_ops(pybind11::module_& m);  // sample, top_logprobs
void bind_token_text(pybind11::module_& m);

}  // namespace astrai::bindings
