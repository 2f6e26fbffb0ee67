#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "astrai/thread_pool.h"

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

using astrai::ThreadPool;

namespace {

// How often run() visits each item.
std::vector<int> visits(ThreadPool& pool, int64_t n_items, int64_t max_chunks) {
  std::vector<std::atomic<int>> counts(static_cast<size_t>(n_items));
  pool.run(n_items, max_chunks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) ++counts[static_cast<size_t>(i)];
  });
  return std::vector<int>(counts.begin(), counts.end());
}

}  // namespace

TEST_CASE("ThreadPool visits every item once, whatever the number of items, chunks and threads") {
  for (const int n_threads : {1, 2, 3, 7}) {
    ThreadPool pool(n_threads);
    for (const int64_t n_items : {0, 1, 2, 5, 64, 1000}) {
      for (const int64_t max_chunks : {0, 1, 2, 3, 64, 100'000}) {
        const std::vector<int> counts = visits(pool, n_items, max_chunks);
        CHECK(counts == std::vector<int>(static_cast<size_t>(n_items), 1));
      }
    }
  }
}

TEST_CASE("ThreadPool cuts ranges that differ by at most one item") {
  ThreadPool pool(2);
  std::atomic<int64_t> shortest{1000}, longest{0}, n_ranges{0};
  pool.run(100, 7, [&](int64_t begin, int64_t end) {
    ++n_ranges;
    for (int64_t seen = shortest; end - begin < seen && !shortest.compare_exchange_weak(seen, end - begin);) {
    }
    for (int64_t seen = longest; end - begin > seen && !longest.compare_exchange_weak(seen, end - begin);) {
    }
  });
  CHECK(n_ranges == 7);
  CHECK(shortest == 14);
  CHECK(longest == 15);
}

TEST_CASE("ThreadPool serves many short jobs in a row, polled for and slept through") {
  ThreadPool pool(3);
  for (int job = 0; job < 3000; ++job) {
    if (job % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // workers are asleep after this
    std::atomic<int> sum{0};
    pool.run(16, 16, [&](int64_t begin, int64_t) { sum += static_cast<int>(begin); });
    REQUIRE(sum == 120);
  }
}

TEST_CASE("ThreadPool waits for a slow worker, polling or asleep") {
  ThreadPool pool(2);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> n_done{0};
  pool.run(8, 8, [&](int64_t, int64_t) {
    if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++n_done;
  });
  CHECK(n_done == 8);
}

TEST_CASE("ThreadPool serialises callers and survives a change of size between their jobs") {
  ThreadPool pool(2);
  std::atomic<int> n_inside{0};
  std::atomic<bool> is_mixed{false};
  std::vector<std::thread> callers;
  for (int id = 0; id < 4; ++id) {
    callers.emplace_back([&, id] {
      for (int job = 0; job < 200; ++job) {
        std::atomic<int64_t> sum{0};
        pool.run(10, 5, [&](int64_t begin, int64_t end) {
          if (++n_inside > 4) is_mixed = true;  // more than the largest pool has threads
          for (int64_t i = begin; i < end; ++i) sum += i;
          --n_inside;
        });
        if (sum != 45) is_mixed = true;
        if (job % 50 == 0) pool.set_n_threads(2 + (job / 50 + id) % 3);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_FALSE(is_mixed);
}

TEST_CASE("ThreadPool refuses a number of threads outside its range") {
  CHECK_THROWS_AS(ThreadPool(0), std::invalid_argument);
  ThreadPool pool(1);
  CHECK_THROWS_WITH_AS(pool.set_n_threads(257), "cpu_threads: n is 257; accepted are 1..256", std::invalid_argument);
  CHECK(pool.n_threads() == 1);
}

#if defined(__unix__)
TEST_CASE("the shared pool works in a forked child, also after the parent used it") {
  astrai::shared_thread_pool().set_n_threads(3);
  CHECK(visits(astrai::shared_thread_pool(), 50, 10) == std::vector<int>(50, 1));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ThreadPool& pool = astrai::shared_thread_pool();
    const bool is_right = pool.n_threads() == 3 && visits(pool, 50, 10) == std::vector<int>(50, 1);
    _exit(is_right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif
