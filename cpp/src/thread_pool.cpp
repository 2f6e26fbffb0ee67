// Ordering: run() writes the job, then publishes it in ticket_; a chunk is claimed by compare-and-swap on ticket_, so
// whoever holds a chunk sees the job it belongs to, and the job stays until that chunk is counted in n_done_.
// Sleeping follows Dekker's pattern: a sleeper announces itself and then looks for work, a publisher publishes and then
// looks for sleepers, all sequentially consistent, so one of the two sees the other.
#include "astrai/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define ASTRAI_HAS_FORK 1
#endif

namespace astrai {
namespace {

constexpr int64_t kPollNs = 20'000;      // long enough to bridge the small operations between two matrix products
constexpr int64_t kMaxChunks = 0xffff;   // 16 bits of the ticket
constexpr int kDefaultMaxThreads = 16;   // decoding is bound by memory, which a few cores saturate

constexpr uint32_t chunks_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 16) & 0xffff; }
constexpr uint32_t next_of(uint64_t ticket) { return static_cast<uint32_t>(ticket) & 0xffff; }

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls until condition() holds or the time is over; says which.
template <typename Condition>
bool poll(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPollNs);
  do {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

int checked_thread_count(int n_threads) {
  if (n_threads < 1 || n_threads > ThreadPool::kMaxThreads) {
    throw std::invalid_argument("cpu_threads: n is " + std::to_string(n_threads) + "; accepted are 1.." +
                                std::to_string(ThreadPool::kMaxThreads));
  }
  return n_threads;
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : n_threads_(checked_thread_count(n_threads)) {}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::set_n_threads(int n_threads) {
  checked_thread_count(n_threads);
  std::lock_guard<std::mutex> running(run_mutex_);
  if (n_threads == this->n_threads()) return;
  stop_workers();
  n_threads_ = n_threads;
}

void ThreadPool::start_workers() {
  const size_t n_workers = static_cast<size_t>(n_threads()) - 1;
  while (workers_.size() < n_workers) workers_.emplace_back(&ThreadPool::work, this);
}

void ThreadPool::stop_workers() {
  {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    is_stopping_ = true;
  }
  work_cv_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  is_stopping_ = false;
}

void ThreadPool::run_erased(int64_t n_items, int64_t max_chunks, const void* fn, RangeFn call) {
  const int64_t n_chunks = std::min({n_items, max_chunks, kMaxChunks});
  if (n_items <= 0) return;
  if (n_chunks <= 1 || n_threads() == 1) return call(fn, 0, n_items);

  std::lock_guard<std::mutex> running(run_mutex_);
  start_workers();
  fn_ = fn;
  call_ = call;
  n_items_ = n_items;
  n_done_.store(0, std::memory_order_relaxed);
  const uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_ = (job << 32) | (static_cast<uint64_t>(n_chunks) << 16);
  if (const int n_sleeping = n_sleeping_; n_sleeping > 0) {
    { std::lock_guard<std::mutex> lock(sleep_mutex_); }  // a worker between its look and its wait is let through
    const int64_t n_useful = std::min<int64_t>(n_sleeping, n_chunks - 1);
    for (int64_t i = 0; i < n_useful; ++i) work_cv_.notify_one();
  }
  while (do_one_chunk()) {
  }
  wait_until_done(static_cast<uint32_t>(n_chunks));
}

bool ThreadPool::has_chunk() const {
  const uint64_t ticket = ticket_;
  return next_of(ticket) < chunks_of(ticket);
}

bool ThreadPool::do_one_chunk() {
  uint64_t ticket = ticket_;
  do {
    if (next_of(ticket) >= chunks_of(ticket)) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket + 1));
  const int64_t chunk = next_of(ticket);
  const int64_t n_chunks = chunks_of(ticket);
  const int64_t base = n_items_ / n_chunks;
  const int64_t n_longer = n_items_ % n_chunks;  // the first n_longer ranges hold one item more
  const int64_t begin = chunk * base + std::min(chunk, n_longer);
  call_(fn_, begin, begin + base + (chunk < n_longer ? 1 : 0));
  const bool is_last = n_done_.fetch_add(1) + 1 == n_chunks;
  if (is_last && is_caller_sleeping_) {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    done_cv_.notify_one();
  }
  return true;
}

void ThreadPool::wait_until_done(uint32_t n_chunks) {
  const auto is_done = [&] { return n_done_ == n_chunks; };
  if (poll(is_done)) return;
  std::unique_lock<std::mutex> lock(sleep_mutex_);
  is_caller_sleeping_ = true;
  done_cv_.wait(lock, is_done);
  is_caller_sleeping_ = false;
}

void ThreadPool::work() {
  const auto has_news = [&] { return has_chunk() || is_stopping_; };
  while (!is_stopping_) {
    if (do_one_chunk() || poll(has_news)) continue;
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    ++n_sleeping_;
    work_cv_.wait(lock, has_news);
    --n_sleeping_;
  }
}

namespace {

std::atomic<ThreadPool*> shared_pool{nullptr};

ThreadPool* make_shared_pool() {
  const int n_cores = static_cast<int>(std::thread::hardware_concurrency());  // 0 when unknown
#ifdef ASTRAI_HAS_FORK
  // The child of a fork() has none of the parent's threads, and its copies of the locks may be held for ever: leave the
  // old pool where it is and use another.
  pthread_atfork(nullptr, nullptr, [] {
    if (const ThreadPool* parents = shared_pool) shared_pool = new ThreadPool(parents->n_threads());
  });
#endif
  return new ThreadPool(std::clamp(n_cores, 1, kDefaultMaxThreads));
}

}  // namespace

ThreadPool& shared_thread_pool() {
  static std::once_flag once;
  std::call_once(once, [] { shared_pool = make_shared_pool(); });
  return *shared_pool;
}

}  // namespace astrai
