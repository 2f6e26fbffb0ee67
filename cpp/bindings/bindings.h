// One bind_* function per area; module.cpp calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace astrai::bindings {

void bind_ops(pybind11::module_& m);  // what was built, rotary_emb, store_kv
void bind_token_text(pybind11::module_& m);

}  // namespace astrai::bindings
