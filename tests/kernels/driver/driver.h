// Checks of the ops of one kernel variant against the cases of a file.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "vectors.h"

// Numbers of threads that every op runs on: results must not depend on them.
constexpr int kThreads[] = {1, 2, 3};

// What became of the cases of one op.
struct Tally {
    int checks = 0, failed = 0;
    uint32_t bits = 2166136261u;  // FNV-1a of all results: equal on every machine that runs this variant
};

// 64-byte aligned memory.
class Aligned {
  public:
    explicit Aligned(size_t bytes) : p_(std::aligned_alloc(64, (bytes + 127) / 64 * 64)) {
        if (p_ == nullptr) throw std::bad_alloc();
    }
    ~Aligned() { std::free(p_); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    uint8_t* get() const { return static_cast<uint8_t*>(p_); }

  private:
    void* p_;
};

// One variant and the case it is given.
class Run {
  public:
    explicit Run(const leafage::Kernels& table);

    const leafage::Kernels& table;
    void start(const Case& one);  // what follows belongs to this case
    const std::map<std::string, Tally>& tallies() const { return tallies_; }

    bool is(const char* variant) const { return std::string(table.name) == variant; }

    // body(worker) on a team.
    void on_team(int threads, const std::function<void(leafage::Worker&)>& body);

    // The same bits; NaN equals NaN. `what` tells which run of the case it was.
    void same(const std::string& what, const float* got, const float* expected, size_t count);
    void same_bytes(const std::string& what, const void* got, const void* expected, size_t bytes);
    // |got - expected| <= limit for each value.
    void near(const std::string& what, const float* got, const std::vector<double>& expected,
              const std::vector<double>& limit);
    void check(const std::string& what, bool good, const std::string& why = "");
    // Results that count for Tally::bits.
    void note(const float* values, size_t count);
    void note_bytes(const void* values, size_t bytes);

  private:
    std::map<int, std::unique_ptr<leafage::Team>> teams_;
    std::map<std::string, Tally> tallies_;
    std::string name_;
    Tally* tally_ = nullptr;
};

// "3 threads", for messages.
std::string threads_text(int threads);

void check_linear(const Case& one, Run& run);
void check_embed(const Case& one, Run& run);
void check_elementwise(const Case& one, Run& run);
void check_select_logit_rows(const Case& one, Run& run);
void check_kv_write(const Case& one, Run& run);
void check_copy_blocks(const Case& one, Run& run);
void check_attention(const Case& one, Run& run);
void check_sample(const Case& one, Run& run);
