// Which instruction set runs: detected once, overridable for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;

namespace leafage {

namespace {

bool runs_here(const std::string& name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (name == "avx2") return avx2;
    if (name == "avx512")
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#endif
    return name == "plain";
}

const Kernels* by_name(const std::string& name) {
    if (name == "avx512") return kernels_avx512();
    if (name == "avx2") return kernels_avx2();
    if (name == "plain") return kernels_plain();
    return nullptr;
}

std::vector<std::string> variants() {
    std::vector<std::string> names;
    for (const char* name : {"avx512", "avx2", "plain"})
        if (by_name(name) != nullptr && runs_here(name)) names.emplace_back(name);
    return names;
}

// The best variant, or the one that LEAFAGE_KERNELS names when it runs here.
const Kernels* first_choice() {
    auto names = variants();
    const char* wanted = std::getenv("LEAFAGE_KERNELS");
    for (const auto& name : names)
        if (wanted != nullptr && name == wanted) return by_name(name);
    return by_name(names.front());
}

const Kernels*& chosen() {
    static const Kernels* table = first_choice();
    return table;
}

}  // namespace

const Kernels& kernels() { return *chosen(); }

void bind_cpu(nb::module_& m) {
    m.def("variants", &variants, "Instruction-set variants that are built and run on this CPU, best first.");
    m.def("variant", [] { return std::string(kernels().name); });
    m.def("set_variant", [](const std::string& name) {
        for (const auto& known : variants())
            if (known == name) {
                chosen() = by_name(name);
                return;
            }
        throw std::invalid_argument("no such kernel variant here: " + name);
    });
    m.def("cpu_features", [] {
        std::vector<std::string> found;
#if defined(__x86_64__)
        __builtin_cpu_init();
#define LEAFAGE_FEATURE(name) \
    if (__builtin_cpu_supports(name)) found.emplace_back(name)
        LEAFAGE_FEATURE("avx2");
        LEAFAGE_FEATURE("fma");
        LEAFAGE_FEATURE("avx512f");
        LEAFAGE_FEATURE("avx512bw");
        LEAFAGE_FEATURE("avx512vl");
        LEAFAGE_FEATURE("avx512vnni");
        LEAFAGE_FEATURE("avx512bf16");
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
        LEAFAGE_FEATURE("amx-int8");
        LEAFAGE_FEATURE("amx-bf16");
#endif
#undef LEAFAGE_FEATURE
#endif
        return found;
    });
}

}  // namespace leafage
