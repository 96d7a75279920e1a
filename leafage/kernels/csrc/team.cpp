#include "team.h"

#include <algorithm>
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

Team::Team(int num_threads, size_t scratch_bytes) : count_(num_threads), runs_(new Run[size_t(num_threads)]) {
    for (int i = 0; i < count_; ++i) {
        void* p = nullptr;
        if (posix_memalign(&p, 64, scratch_bytes + 64) != 0) throw std::bad_alloc();
        workers_.push_back({this, i, count_, static_cast<uint8_t*>(p), scratch_bytes});
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
    for (Worker& worker : workers_) std::free(worker.scratch);
}

void Team::loop(int index) {
    uint64_t seen = 0;
    Worker& worker = workers_[size_t(index)];
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
    body(workers_[0]);
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

namespace {

constexpr int kTaskBits = 24;
constexpr uint64_t kTaskMask = (uint64_t(1) << kTaskBits) - 1;

constexpr uint64_t pack_run(uint32_t number, int begin, int end) {
    return uint64_t(number) << (2 * kTaskBits) | uint64_t(begin) << kTaskBits | uint64_t(end);
}
constexpr int begin_of(uint64_t run) { return int(run >> kTaskBits & kTaskMask); }
constexpr int end_of(uint64_t run) { return int(run & kTaskMask); }

// A take is a locked instruction, which waits for all stores before it, and so does the line of another member's run:
// short runs are taken whole, of long ones a quarter of what is left.
constexpr int kWholeRun = 32, kLeastTake = 8;
// Fewer are on their way into the caches of their owner already.
constexpr int kLeastStolen = 4;

}  // namespace

void Worker::begin_runs(int n) {
    tasks = n;
    share = n <= kWholeRun * count ? Share::kWhole : Share::kParts;
    if (share == Share::kParts) ++num_shared_runs;
}

bool Worker::next_of_run(int& first, int& last) {
    if (share != Share::kParts) {
        first = first_of_run(tasks, index);
        last = first_of_run(tasks, index + 1);
        const bool some = share == Share::kWhole && first < last;
        share = Share::kNothing;
        return some;
    }
    std::atomic<uint64_t>& own = team->runs_[size_t(index)].value;
    for (int i = 0; i < count;) {
        const int owner = (index + i) % count;
        std::atomic<uint64_t>& run = team->runs_[size_t(owner)].value;
        uint64_t seen = run.load(std::memory_order_relaxed);
        // Whoever comes first makes the run: a member that is late must not hold up the others.
        const bool made = (seen >> 2 * kTaskBits) == (num_shared_runs & 0xffff);
        const int begin = made ? begin_of(seen) : first_of_run(tasks, owner);
        const int end = made ? end_of(seen) : first_of_run(tasks, owner + 1);
        if (end - begin < (i == 0 ? 1 : kLeastStolen)) {
            ++i;
        } else if (i == 0) {
            first = begin;
            last = std::min(end, begin + std::max(kLeastTake, (end - begin) / 4));
            if (run.compare_exchange_weak(seen, pack_run(num_shared_runs, last, end), std::memory_order_relaxed)) return true;
        } else {
            const int middle = begin + (end - begin) / 2;
            if (run.compare_exchange_weak(seen, pack_run(num_shared_runs, begin, middle), std::memory_order_relaxed)) {
                own.store(pack_run(num_shared_runs, middle, end), std::memory_order_relaxed);
                i = 0;
            }
        }
    }
    return false;
}

}  // namespace leafage
