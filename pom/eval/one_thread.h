// Work that is not shared out: what LAPACK and GEMMs round depends on how many threads share it, so whatever
// shall have the same bits with any number of threads is one thread's, and many such things go side by side.
#pragma once

#include <cstdint>
#include <functional>

namespace pom::eval {

// work(0) … work(count - 1), each in one thread, in any order, as many at a time as torch has threads and at
// most `at_once`. The first error is thrown when all have ended.
void each_in_one_thread(std::int64_t count, std::int64_t at_once,
                        const std::function<void(std::int64_t)>& work);
void in_one_thread(const std::function<void()>& work);

}  // namespace pom::eval
