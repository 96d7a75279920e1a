#include "cpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace leafage {

namespace {

// Whether a list like "a,b" holds a name.
bool lists(const char* list, const char* name) {
    for (size_t n = std::strlen(name); list != nullptr; list = std::strchr(list, ',')) {
        if (*list == ',') ++list;
        if (std::strncmp(list, name, n) == 0 && (list[n] == ',' || list[n] == 0)) return true;
    }
    return false;
}

std::vector<std::string> detect() {
    std::vector<std::string> found;
    const char* without = std::getenv("LEAFAGE_CPU_WITHOUT");
    auto note = [&](const char* name, bool has) {
        if (has && !lists(without, name)) found.emplace_back(name);
    };
#if defined(__x86_64__)
    __builtin_cpu_init();
#define LEAFAGE_FEATURE(name) note(name, __builtin_cpu_supports(name))
    LEAFAGE_FEATURE("avx2");
    LEAFAGE_FEATURE("fma");
    LEAFAGE_FEATURE("bmi2");
    LEAFAGE_FEATURE("avx512f");
    LEAFAGE_FEATURE("avx512bw");
    LEAFAGE_FEATURE("avx512vl");
    LEAFAGE_FEATURE("avx512dq");
    LEAFAGE_FEATURE("avx512vnni");
    LEAFAGE_FEATURE("avx512bf16");
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
    LEAFAGE_FEATURE("amx-tile");
    LEAFAGE_FEATURE("amx-int8");
    LEAFAGE_FEATURE("amx-bf16");
#endif
#undef LEAFAGE_FEATURE
#elif defined(__aarch64__) && defined(__linux__)
    note("asimddp", getauxval(AT_HWCAP) & HWCAP_ASIMDDP);
#endif
    return found;
}

bool runs_here(const std::string& name) {
    auto all = [](std::initializer_list<const char*> features) {
        return std::all_of(features.begin(), features.end(), cpu_has);
    };
    if (name == "avx2") return all({"avx2", "fma", "bmi2"});
    if (name == "avx512")
        return runs_here("avx2") && all({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"});
    if (name == "neon") return cpu_has("asimddp");
    return name == "plain";
}

// The best variant, or the one that LEAFAGE_KERNELS names.
const Kernels* first_choice() {
    const char* wanted = std::getenv("LEAFAGE_KERNELS");
    if (wanted == nullptr || *wanted == 0) return find_variant(variants().front());
    return &named_variant("LEAFAGE_KERNELS", wanted);
}

const Kernels*& chosen() {
    static const Kernels* table = first_choice();
    return table;
}

}  // namespace

const std::vector<std::string>& cpu_features() {
    static const std::vector<std::string> found = detect();
    return found;
}

#if defined(__x86_64__)
const bool fetch_into_l2 = (__builtin_cpu_init(), __builtin_cpu_is("intel") != 0);
#else
const bool fetch_into_l2 = false;
#endif

bool cpu_has(const char* feature) {
    const auto& found = cpu_features();
    return std::find(found.begin(), found.end(), feature) != found.end();
}

const Kernels* find_variant(const std::string& name) {
    for (const Kernels* table : {kernels_avx512(), kernels_avx2(), kernels_neon(), kernels_plain()})
        if (table != nullptr && name == table->name && runs_here(name)) return table;
    return nullptr;
}

const Kernels& named_variant(const char* what, const std::string& name) {
    if (const Kernels* table = find_variant(name)) return *table;
    std::string message = std::string(what) + " is " + name + ", but the kernels that run here are";
    const auto names = variants();
    for (const auto& other : names) message += (other == names.front() ? " " : ", ") + other;
    throw std::invalid_argument(message);
}

std::vector<std::string> variants() {
    std::vector<std::string> names;
    for (const char* name : {"avx512", "avx2", "neon", "plain"})
        if (find_variant(name) != nullptr) names.emplace_back(name);
    return names;
}

const Kernels& kernels() { return *chosen(); }
void set_variant(const Kernels& table) { chosen() = &table; }

}  // namespace leafage
