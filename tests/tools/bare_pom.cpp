// The program pom, with a table of parts (cli/parts.cpp) in which some are missing.
extern "C" int pom_main(int argc, char** argv);

int main(int argc, char** argv) {
  return pom_main(argc, argv);
}
