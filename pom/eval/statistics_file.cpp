#include "pom/eval/statistics_file.h"

#include <cstring>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/io/atomic_file.h"
#include "pom/io/mapped_file.h"
#include "pom/io/npz.h"

namespace pom::eval {
namespace {

constexpr std::uint64_t any_size =
    ~std::uint64_t{0};  // ADM's have pictures too, and only some members are read

at::Tensor numbers_of(const io::NpyArray& array, const std::string& where, std::size_t sides) {
  const bool single = array.header.type == io::NpyType::single, real = array.header.type == io::NpyType::real;
  check((single || real) && array.header.shape.size() == sides, where, ": expected fp32 or fp64 with ", sides,
        sides == 1 ? " side" : " sides", ", got shape ", io::npy_shape_text(array.header.shape));
  at::Tensor numbers = at::empty(array.header.shape, single ? at::kFloat : at::kDouble);
  std::memcpy(numbers.data_ptr(), array.view().data(), numbers.nbytes());
  return numbers.to(at::kDouble);
}

Gaussian gaussian_in(const io::Npz& npz, const std::string& mu, const std::string& sigma,
                     const std::string& where) {
  Gaussian found{numbers_of(npz.read(mu), where + ": " + mu, 1),
                 numbers_of(npz.read(sigma), where + ": " + sigma, 2)};
  check(found.covariance.size(0) == found.mean.size(0) && found.covariance.size(1) == found.mean.size(0),
        where, ": ", sigma, ": expected (", found.mean.size(0), ", ", found.mean.size(0), ") as of ", mu,
        ", got ", found.covariance.sizes());
  return found;
}

std::string npy_of(const at::Tensor& t) {
  const at::Tensor values = t.to(at::kCPU, at::kDouble).contiguous();
  return io::write_npy(io::NpyType::real, values.sizes(),
                       {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
}

}  // namespace

bool has_statistics(const std::string& path) {
  if (!path.ends_with(".npz")) return false;
  const io::MappedFile file(path, "eval");
  return io::Npz(file.view(), "eval: " + path, any_size).find("mu") != nullptr;
}

Statistics read_statistics(const std::filesystem::path& path) {
  const std::string where = "eval: " + path.string();
  const io::MappedFile file(path, "eval");
  const io::Npz npz(file.view(), where, any_size);
  for (const char* name : {"mu", "sigma"})
    check(npz.find(name) != nullptr, where, ": expected mu and sigma, got a file without ", name);
  Statistics statistics{gaussian_in(npz, "mu", "sigma", where), {}, {}};
  if (npz.find("mu_s") && npz.find("sigma_s"))
    statistics.spatial = gaussian_in(npz, "mu_s", "sigma_s", where);
  if (npz.find("recipe")) {
    const io::NpyArray text = npz.read("recipe");
    check(text.header.type == io::NpyType::uint8, where, ": recipe: expected bytes, got other numbers");
    statistics.recipe = text.elements;
  }
  return statistics;
}

void write_statistics(const std::filesystem::path& path, const Statistics& statistics) {
  std::vector<std::pair<std::string, std::string>> members = {{"mu", npy_of(statistics.main.mean)},
                                                              {"sigma", npy_of(statistics.main.covariance)}};
  if (statistics.spatial) {
    members.emplace_back("mu_s", npy_of(statistics.spatial->mean));
    members.emplace_back("sigma_s", npy_of(statistics.spatial->covariance));
  }
  if (!statistics.recipe.empty()) {
    const std::vector<std::int64_t> shape = {std::ssize(statistics.recipe)};
    members.emplace_back(
        "recipe", io::write_npy(io::NpyType::uint8, shape, std::as_bytes(std::span(statistics.recipe))));
  }
  io::write_file_atomically(path, io::write_npz(members));
}

}  // namespace pom::eval
