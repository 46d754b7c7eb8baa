// Which libraries the pictures go through, for people who look for the fault of a machine.
#include <cstdio>
#include <jpeglib.h>
#include <png.h>

#include "pom/base/error.h"
#include "pom/io/picture.h"

#define POM_TEXT(x) #x
#define POM_TEXT_OF(x) POM_TEXT(x)

namespace pom::io {

std::string picture_libraries() {
#ifdef LIBJPEG_TURBO_VERSION
  constexpr const char* jpeg = "libjpeg-turbo " POM_TEXT_OF(LIBJPEG_TURBO_VERSION);
#else
  constexpr const char* jpeg = "libjpeg " POM_TEXT_OF(JPEG_LIB_VERSION);
#endif
  return ::pom::detail::concat("libpng ", png_get_libpng_ver(nullptr), ", ", jpeg);
}

}  // namespace pom::io
