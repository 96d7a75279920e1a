// A team of threads that runs one function at a time, all members at once (SPMD), with cheap barriers.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace leafage {

class Team;

// What a member knows of itself inside Team::run. Ops get one and split their work by it.
struct alignas(64) Worker {
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

    // Another way to share tasks, for those that read one stream of memory: a run of task numbers for each member,
    // who takes them in order, and half of what another one has left when its own are done. All members call
    // begin_runs with the same number of tasks (below 2^24), then next_of_run until there is none: first .. last - 1.
    void begin_runs(int tasks);
    bool next_of_run(int& first, int& last);
    // The first of n tasks in a member's run, or n for the member after the last one.
    int first_of_run(int n, int member) const { return int(int64_t(n) * member / count); }

    enum class Share { kNothing, kWhole, kParts };
    Share share = Share::kNothing;  // how the runs of the last begin_runs are taken
    int tasks = 0;
    uint32_t num_shared_runs = 0;  // calls of begin_runs that were taken in parts
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
    // What is left of a member's run: begin and end of 24 bits each, behind 16 bits of num_shared_runs.
    struct alignas(64) Run { std::atomic<uint64_t> value{0}; };
    void loop(int index);
    void wait_barrier();

    int count_;
    std::vector<Worker> workers_;
    std::vector<std::thread> threads_;
    std::unique_ptr<Run[]> runs_;
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
