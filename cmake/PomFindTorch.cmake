# pom_find_torch(arguments of find_package ...): finds LibTorch without its warnings. Used by our own build and, being
# installed beside pomConfig.cmake, by the builds of others.
macro(pom_find_torch)
  # Kineto is inside libtorch_cpu; TorchConfig looks for it apart and warns. The answer only lands in TORCH_LIBRARIES.
  if(NOT kineto_LIBRARY)
    set(kineto_LIBRARY torch)
  endif()
  find_package(Torch ${ARGN})
  # Torch names folders of MKL (/lib/intel64, ...) even where there is no MKL, and they would end in every RUNPATH.
  if(TARGET caffe2::mkl AND NOT MKL_FOUND)
    set_property(TARGET caffe2::mkl PROPERTY INTERFACE_LINK_DIRECTORIES "")
  endif()
endmacro()
