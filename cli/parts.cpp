#include "cli/parts.h"

#include <algorithm>
#include <sstream>

#include "pom/base/error.h"

namespace pom::cli {
namespace {

constexpr Found found(int state) {
  return state > 0 ? Found::yes : state == 0 ? Found::missing : Found::off;
}

// What a part needs: the library's name in a sentence, the packages that have it, the option that leaves it
// out.
struct Need {
  std::string_view library, packages, option;
};

std::string why(Found state, const Need& need) {
  if (state == Found::yes) return {};
  if (state == Found::off) return detail::concat("it was switched off (", need.option, ") when it was built");
  return detail::concat(need.library, " not found when it was built; install ", need.packages,
                        " and build again");
}

std::string why_no_kernels(const Build& build) {
  if (build.cuda == Found::yes) return {};
  if (!build.torch_has_cuda)
    return "this torch is a CPU build; for a GPU, install a torch with CUDA and build again";
  return why(build.cuda, {"nvcc was", "the CUDA toolkit", "POM_KERNELS"});
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

// cli/CMakeLists.txt defines these: 1 found, 0 missing, -1 switched off.
Build this_build() {
  return {found(POM_PART_PICTURES), found(POM_PART_CLIPS),  found(POM_PART_DATA),    found(POM_PART_TRAINING),
          found(POM_PART_CUDA),     found(POM_PART_SERVER), POM_TORCH_HAS_CUDA != 0, POM_ARCHITECTURES};
}

std::vector<Part> parts_of(const Build& build) {
  const Need png{"libpng or libjpeg was", "libpng-dev and libjpeg-dev", "POM_PICTURES=OFF"};
  const Need ffmpeg{"FFmpeg's libraries were",
                    "libavformat-dev, libavcodec-dev, libswscale-dev and libavutil-dev", "POM_CLIPS=OFF"};
  const Need boost{"Boost's headers were", "libboost-dev", "POM_SERVE=OFF"};
  const Need toml{"toml++ was", "libtomlplusplus-dev", "POM_TRAIN=OFF"};
  return {
      {"pictures", build.pictures, "PNG and JPEG", "", why(build.pictures, png)},
      {"clips", build.clips, ".mp4 and .webm, and reading clips", "", why(build.clips, ffmpeg)},
      {"data sets", build.data, "pom dataset, encode and eval", "dataset encode eval", why(build.data, toml)},
      {"training", build.training, "pom train, plan, export, bench and experiment",
       "train plan export bench experiment", why(build.training, toml)},
      {"server", build.server, "pom serve", "serve", why(build.server, boost)},
      {"CUDA kernels", build.cuda, "our kernels on a GPU", "", why_no_kernels(build)},
  };
}

std::vector<std::string> absent_commands(const Build& build) {
  std::vector<std::string> absent;
  for (const Part& part : parts_of(build))
    if (part.found != Found::yes)
      for (std::string& word : words_of(part.commands)) absent.push_back(std::move(word));
  return absent;
}

std::string why_absent(std::string_view command, const Build& build) {
  for (const Part& part : parts_of(build)) {
    const std::vector<std::string> commands = words_of(part.commands);
    if (part.found != Found::yes && std::ranges::find(commands, command) != commands.end())
      return detail::concat("this build has no ", part.name, ": ", part.why);
  }
  return {};
}

}  // namespace pom::cli
