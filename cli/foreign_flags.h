// What other programs call our flags: people who come from diffusers type those first.
#pragma once

#include <string_view>

namespace pom::cli {

// "use --cfg-scale" for "--guidance-scale"; empty where it is nobody's.
std::string_view foreign_flag(std::string_view flag);

}  // namespace pom::cli
