// An emulated GPU (tests/emulated) takes seconds where a real one takes none: of the sizes it tries one in so
// many.
#pragma once

#ifdef POM_EMULATED
constexpr bool kEmulated = true;
constexpr int kSpread = 5;
#else
constexpr bool kEmulated = false;
constexpr int kSpread = 1;
#endif
