// The file one starts. It knows no torch: the program is a library that it opens once the environment is
// right, because OpenMP reads its settings when it is loaded and never again.
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

namespace {

// Threads that wait for the next piece of work spin before they sleep. OpenMP's own choice, milliseconds of
// it, makes sampling many times slower as soon as another process wants the processor; a few microseconds
// serve as well on a quiet machine.
void limit_spinning() {
  if (!std::getenv("OMP_WAIT_POLICY")) ::setenv("GOMP_SPINCOUNT", "20000", 0);
}

// A picture must not become what a closed stdout or stderr is taken for. What would go to a stdout that is
// closed cannot be written, and is an error; nobody need read what goes to stderr.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) == -1) ::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
}

bool folder_exists() {
  char* folder = ::getcwd(nullptr, 0);
  std::free(folder);
  return folder != nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  if (!folder_exists()) {  // torch's libraries would end the process with words of their own
    std::fprintf(stderr, "pom: the current folder is gone; change to one that exists\n");
    return 1;
  }
  limit_spinning();
  void* program = ::dlopen("libpom_program.so", RTLD_LAZY | RTLD_GLOBAL);  // by the run path of this file
  using Main = int (*)(int, char**);
  const Main run = program ? reinterpret_cast<Main>(::dlsym(program, "pom_main")) : nullptr;
  if (!run) {
    std::fprintf(stderr, "pom: libpom_program.so, which is installed with this file, cannot be opened: %s\n",
                 ::dlerror());
    return 1;
  }
  return run(argc, argv);
}
