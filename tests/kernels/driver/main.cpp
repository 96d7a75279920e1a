// Compares every op of every kernel variant that this CPU runs with the results of the NumPy oracles, without
// Python: kernel_driver FILE, where dump.py wrote FILE. Also: a row alone and in a batch, and any number of
// threads, must give the same bits. One line per variant and op; exit status 1 when a check fails.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cpu.h"
#include "driver.h"

using namespace leafage;

namespace {

uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return std::isnan(x) ? 0x7fc00000u : u;
}

std::string value_text(size_t index, double got, double expected) {
    char text[120];
    std::snprintf(text, sizeof text, "value %zu is %.9g, expected %.9g", index, got, expected);
    return text;
}

}  // namespace

std::string threads_text(int threads) { return std::to_string(threads) + (threads == 1 ? " thread" : " threads"); }

Run::Run(const Kernels& table) : table(table) {
    for (int threads : kThreads) teams_[threads] = std::make_unique<Team>(threads, worker_scratch_bytes());
}

void Run::start(const Case& one) {
    name_ = one.name;
    tally_ = &tallies_[one.op()];
}

void Run::on_team(int threads, const std::function<void(Worker&)>& body) { teams_.at(threads)->run(body); }

void Run::check(const std::string& what, bool good, const std::string& why) {
    ++tally_->checks;
    if (good) return;
    if (++tally_->failed <= 5)
        std::printf("FAILED %s, %s, %s: %s\n", table.name, name_.c_str(), what.c_str(), why.c_str());
}

void Run::same(const std::string& what, const float* got, const float* expected, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if (bits_of(got[i]) != bits_of(expected[i])) return check(what, false, value_text(i, got[i], expected[i]));
    check(what, true);
}

void Run::same_bytes(const std::string& what, const void* got, const void* expected, size_t bytes) {
    const auto *a = static_cast<const uint8_t*>(got), *b = static_cast<const uint8_t*>(expected);
    for (size_t i = 0; i < bytes; ++i)
        if (a[i] != b[i]) return check(what, false, value_text(i, a[i], b[i]));
    check(what, true);
}

void Run::near(const std::string& what, const float* got, const std::vector<double>& expected,
               const std::vector<double>& limit) {
    for (size_t i = 0; i < expected.size(); ++i)
        if (!(std::fabs(double(got[i]) - expected[i]) <= limit[i]))
            return check(what, false, value_text(i, got[i], expected[i]));
    check(what, true);
}

void Run::note_bytes(const void* values, size_t bytes) {
    const auto* p = static_cast<const uint8_t*>(values);
    for (size_t i = 0; i < bytes; ++i) tally_->bits = (tally_->bits ^ p[i]) * 16777619u;
}

void Run::note(const float* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        uint32_t u = bits_of(values[i]);
        note_bytes(&u, 4);
    }
}

int main(int argc, char** argv) try {
    if (argc != 2) {
        std::fprintf(stderr, "usage: kernel_driver FILE    (FILE: python -m tests.kernels.driver.dump FILE)\n");
        return 2;
    }
    std::vector<Case> cases = read_vectors(argv[1]);
    const std::map<std::string, void (*)(const Case&, Run&)> checks = {
        {"linear", check_linear},       {"embed", check_embed},
        {"rms_norm", check_elementwise}, {"head_norm", check_elementwise},
        {"rope", check_elementwise},    {"act_mul", check_elementwise},
        {"add", check_elementwise},     {"softcap", check_elementwise},
        {"kv_write", check_kv_write},   {"copy_blocks", check_copy_blocks},
        {"attention", check_attention}, {"sample", check_sample},
        {"select_logit_rows", check_select_logit_rows},
    };
    std::string features;
    for (const auto& feature : cpu_features()) features += " " + feature;
    std::printf("chosen %s; CPU has%s\n", kernels().name, features.empty() ? " nothing special" : features.c_str());
    int total = 0, failed = 0;
    for (const auto& name : variants()) {
        const Kernels& table = *find_variant(name);
        set_variant(table);
        Run run(table);
        for (const Case& one : cases) {
            auto found = checks.find(one.op());
            if (found == checks.end()) throw std::runtime_error("no check for " + one.name);
            run.start(one);
            found->second(one, run);
        }
        for (const auto& [op, tally] : run.tallies()) {
            std::printf("%-7s %-17s %5d checks, %d failed, bits %08x\n", table.name, op.c_str(), tally.checks,
                        tally.failed, tally.bits);
            total += tally.checks;
            failed += tally.failed;
        }
        if (run.tallies().size() != checks.size()) throw std::runtime_error("the file has no case of some op");
    }
    std::printf("total: %d checks, %d failed\n", total, failed);
    return failed == 0 ? 0 : 1;
} catch (const std::exception& error) {
    std::fprintf(stderr, "kernel_driver: %s\n", error.what());
    return 2;
}
