// Prints the parts of the build it was made in, one a line: its name, found, missing or off, and why.
#include <iostream>

#include "cli/parts.h"

int main() {
  using namespace pom::cli;
  for (const Part& part : parts_of(this_build()))
    std::cout << part.name << '\t'
              << (part.found == Found::yes       ? "found"
                  : part.found == Found::missing ? "missing"
                                                 : "off")
              << '\t' << part.why << '\n';
}
