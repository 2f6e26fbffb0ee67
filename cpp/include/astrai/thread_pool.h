// A small pool of worker threads for CPU kernels that last 10 us to 10 ms. The calling thread works too.
//
// Workers that have nothing to do poll for at most kPollNs and then block, so idle workers cost nothing and busy cores
// lose no time to spinning. Work is handed out in chunks: a worker that the system runs late finds no chunk left, and
// the caller has done them all, instead of waiting for it.
// Thread safety: every member may be called from any thread; run() calls are served one after the other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace astrai {

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 256;

  // n_threads counts the caller: n_threads - 1 workers, started by the first run() that needs them.
  // Throws std::invalid_argument outside 1..kMaxThreads.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return n_threads_.load(std::memory_order_relaxed); }

  // Waits for a run() in progress, then stops the workers; the next run() starts the new number.
  void set_n_threads(int n_threads);

  // Cuts 0..n_items into at most max_chunks ranges of equal length (give or take one) and calls fn(begin, end) once for
  // each, on any thread and in any order; returns when all have returned. fn must not throw and must not call run().
  // One chunk, or a pool of one thread, is a plain call.
  template <typename Fn>
  void run(int64_t n_items, int64_t max_chunks, const Fn& fn) {
    run_erased(n_items, max_chunks, &fn, [](const void* erased, int64_t begin, int64_t end) {
      (*static_cast<const Fn*>(erased))(begin, end);
    });
  }

 private:
  using RangeFn = void (*)(const void* fn, int64_t begin, int64_t end);

  void run_erased(int64_t n_items, int64_t max_chunks, const void* fn, RangeFn call);
  void start_workers();
  void stop_workers();
  void work();
  bool has_chunk() const;
  bool do_one_chunk();
  void wait_until_done(uint32_t n_chunks);

  std::mutex run_mutex_;  // held by the caller of run() and set_n_threads()
  std::atomic<int> n_threads_;
  std::vector<std::thread> workers_;

  // The job. Written by run() while no chunk is unfinished, read by whoever has claimed a chunk.
  const void* fn_ = nullptr;
  RangeFn call_ = nullptr;
  int64_t n_items_ = 0;

  // Bits 63..32 number of the job, 31..16 chunks it has, 15..0 next chunk to hand out. One word, so that a claim by a
  // worker that was late for its job fails instead of taking a chunk of the next job under the old job's number.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> n_done_{0};  // chunks of the job that have returned

  std::mutex sleep_mutex_;  // guards the two condition variables
  std::condition_variable work_cv_;
  std::condition_variable done_cv_;
  std::atomic<int> n_sleeping_{0};  // workers blocked on work_cv_, or about to
  std::atomic<bool> is_caller_sleeping_{false};
  std::atomic<bool> is_stopping_{false};
};

// The pool that all CPU kernels of the process share: one, because kernels that each bring their own threads fight for
// the same cores. Starts with as many threads as the process may use cores, at most 16. Never destroyed. After fork()
// the child has a fresh pool of the same size, whatever the parent's was doing.
ThreadPool& shared_thread_pool();

}  // namespace astrai
