// A program because headers are compiled with the flags of one (CMakeLists.txt); it has nothing to do.
int main() {}
