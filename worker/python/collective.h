#pragma once

#include <nanobind/nanobind.h>

namespace recon {

// Adds members of sets and their calls to recon._core, which has its exceptions by then.
void DefineCollectives(nanobind::module_& module);

}  // namespace recon
