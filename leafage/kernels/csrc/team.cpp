#include "team.h"

#include <chrono>
#include <cstdlib>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace leafage {

namespace {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins before a waiting thread gives its CPU away. Inside a step waits are short; when another process holds
// the CPU of the thread we wait for, spinning on would only keep it from running.
constexpr int kBarrierSpins = 300;
// Between steps: bridges the Python side of a decode step, then sleeps. Being woken takes some 50 us in a VM.
constexpr auto kIdle = std::chrono::microseconds(300);
constexpr int kIdleSpins = 64;  // before it looks at the clock, and lets another process have the CPU

}  // namespace

Team::Team(int num_threads, size_t scratch_bytes) : count_(num_threads), scratch_bytes_(scratch_bytes) {
    for (int i = 0; i < count_; ++i) {
        void* p = nullptr;
        if (posix_memalign(&p, 64, scratch_bytes + 64) != 0) throw std::bad_alloc();
        scratch_.push_back(static_cast<uint8_t*>(p));
    }
    for (int i = 1; i < count_; ++i) threads_.emplace_back([this, i] { loop(i); });
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
    for (auto* p : scratch_) std::free(p);
}

void Team::loop(int index) {
    uint64_t seen = 0;
    Worker worker{this, index, count_, scratch_[index], scratch_bytes_};
    for (;;) {
        const auto until = std::chrono::steady_clock::now() + kIdle;
        while (generation_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < until) {
            for (int i = 0; i < kIdleSpins && generation_.load(std::memory_order_acquire) == seen; ++i) relax();
            std::this_thread::yield();
        }
        if (generation_.load(std::memory_order_acquire) == seen) {
            std::unique_lock<std::mutex> lock(mutex_);
            sleepers_.fetch_add(1);
            wake_.wait(lock, [&] { return generation_.load() != seen; });
            sleepers_.fetch_sub(1);
        }
        seen = generation_.load(std::memory_order_acquire);
        if (stop_) return;
        (*body_)(worker);
        wait_barrier();
    }
}

void Team::run(const std::function<void(Worker&)>& body) {
    using Clock = std::chrono::steady_clock;
    auto start = Clock::now();
    Worker worker{this, 0, count_, scratch_[0], scratch_bytes_};
    ticket_.store(0, std::memory_order_relaxed);
    if (count_ > 1) {
        body_ = &body;
        generation_.fetch_add(1);
        if (sleepers_.load() > 0) {
            // Taking the mutex orders us after a thread that decided to sleep but does not wait yet.
            std::lock_guard<std::mutex> lock(mutex_);
            wake_.notify_all();
        }
    }
    body(worker);
    wait_barrier();
    seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
}

void Team::wait_barrier() {
    if (count_ == 1) {
        ticket_.store(0, std::memory_order_relaxed);
        return;
    }
    uint64_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
        arrived_.store(0, std::memory_order_relaxed);
        ticket_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    int spins = 0;
    while (phase_.load(std::memory_order_acquire) == phase) {
        relax();
        if (++spins > kBarrierSpins) std::this_thread::yield();
    }
}

void Worker::barrier() { team->wait_barrier(); }

int64_t Worker::take() { return team->ticket_.fetch_add(1, std::memory_order_relaxed); }

}  // namespace leafage
