// A team of threads that runs one function at a time, all members at once (SPMD), with cheap barriers.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace leafage {

class Team;

// What a member knows of itself inside Team::run. Ops get one and split their work by it.
struct Worker {
    Team* team;
    int index;       // 0 .. count-1; 0 is the calling thread
    int count;
    uint8_t* scratch;  // private to this thread, 64-byte aligned
    size_t scratch_bytes;

    // Wait until all members are here. Also resets take().
    void barrier();
    // The next task number (0, 1, 2, ...) that no member has taken since the last barrier. Results must not
    // depend on who takes which task.
    int64_t take();
};

class Team {
  public:
    // scratch_bytes is per thread.
    Team(int num_threads, size_t scratch_bytes);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Run body(worker) on all members; returns when all are done. Not reentrant.
    void run(const std::function<void(Worker&)>& body);
    int size() const { return count_; }
    // Spent inside run().
    double seconds() const { return seconds_; }

  private:
    friend struct Worker;
    void loop(int index);
    void wait_barrier();

    int count_;
    size_t scratch_bytes_;
    std::vector<uint8_t*> scratch_;
    std::vector<std::thread> threads_;
    const std::function<void(Worker&)>* body_ = nullptr;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int> sleepers_{0};
    bool stop_ = false;
    double seconds_ = 0;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint64_t> phase_{0};
    alignas(64) std::atomic<int64_t> ticket_{0};
};

}  // namespace leafage
