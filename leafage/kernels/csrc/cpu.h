// Which instruction set runs: detected once, overridable for tests.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace leafage {

// All that cpu_has() knows of and this CPU has.
const std::vector<std::string>& cpu_features();

// Variants that are built and run on this CPU, best first.
std::vector<std::string> variants();

// Null for a name that is not in variants().
const Kernels* find_variant(const std::string& name);

// Throws std::invalid_argument, with `what` and the names of variants(), for another name.
const Kernels& named_variant(const char* what, const std::string& name);

// From now on kernels() is this one.
void set_variant(const Kernels& table);

}  // namespace leafage
