# Compiler settings shared by every target, and recon_library(), which declares a layer.

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)  # bin/ can be moved as a whole.
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")  # And so can what is installed.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

# A file compiled in one clone is found again in any other: paths below the clone count relative to it, and the folder
# a build runs in does not count. Debug information names files relative to the clone, too. What a file depends on is
# asked of the compiler (CCACHE_DEPEND): the preprocessor alone would take what a precompiled header was before.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(recon_ccache ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime CCACHE_INODECACHE=1 CCACHE_DEPEND=1 ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${recon_ccache})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${recon_ccache})
endif()
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.>)

# Every library can become part of a shared one, a module for Python say; calls within a file are inlined all the same.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC> $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>
                    $<$<COMPILE_LANGUAGE:CXX>:-pthread>)

# Equal bits on every SIMD target and after every replay: no contraction of a*b+c.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(RECON_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${RECON_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${RECON_SANITIZE})
endif()
if(RECON_FAULT_POINTS)
  add_compile_definitions(RECON_FAULT_POINTS=1)
endif()

# Warnings for our own code; generated code is compiled without them.
add_library(recon_warnings INTERFACE)
set(recon_warning_flags -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(RECON_WARNINGS_AS_ERRORS)
  list(APPEND recon_warning_flags -Werror)
endif()
# What a mutex guards is touched under it, and mutexes are taken in their order (ABSL_ACQUIRED_BEFORE: beta in clang 14).
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND recon_warning_flags -Wthread-safety -Wthread-safety-beta)
endif()
# GCC sees uninitialized values in its own library where sanitizers change the code.
if(RECON_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND recon_warning_flags -Wno-error=maybe-uninitialized)
endif()
# ThreadSanitizer cannot see atomic_thread_fence; Abseil and gRPC headers use it.
if(RECON_SANITIZE MATCHES "thread")
  list(APPEND recon_warning_flags -Wno-error=tsan)
endif()
target_compile_options(recon_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${recon_warning_flags}>")
target_include_directories(recon_warnings INTERFACE ${CMAKE_SOURCE_DIR})

# The headers of other projects that most files include, compiled once: a few, which load fast, or those of gRPC and Protocol
# Buffers, too. GCC only: clang, which checks and fuzzes, shows that each file includes what it needs.
function(recon_precompiled_headers name rpc)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  if(rpc)
    target_precompile_headers(${name} REUSE_FROM recon_rpc_headers)
  else()
    target_precompile_headers(${name} REUSE_FROM recon_headers)
  endif()
endfunction()
function(recon_define_precompiled_headers)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  foreach(stem headers rpc_headers)
    add_library(recon_${stem} STATIC ${CMAKE_SOURCE_DIR}/tools/cmake/${stem}.cc)
    # By a path that is the same in every clone: what includes it by another one is another header to ccache, and with it
    # everything that is compiled with it.
    target_precompile_headers(recon_${stem} PRIVATE <tools/cmake/${stem}.h>)
    target_include_directories(recon_${stem} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(recon_${stem} PRIVATE fmt::fmt absl::statusor absl::str_format absl::any_invocable
      absl::flat_hash_map)
  endforeach()
  target_link_libraries(recon_rpc_headers PRIVATE recon_messages recon_services gRPC::grpc++ prometheus-cpp::core)
endfunction()

# Code that runs once in a process, or for a person: compiled for the compiler's time, not for its own.
function(recon_compile_fast)
  set_property(SOURCE ${ARGV} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endfunction()

# recon_library(NAME SOURCES a.cc ... DEPS x ...): a static library that is one layer of the design. RPC: most of its files
# include gRPC or messages.
function(recon_library name)
  cmake_parse_arguments(ARG "RPC" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE recon_warnings)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  recon_precompiled_headers(${name} "${ARG_RPC}")
endfunction()

# recon_program(NAME SOURCES a.cc ... DEPS x ...): a binary in build/<preset>/bin.
function(recon_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} recon_warnings)
  recon_precompiled_headers(${name} ON)
endfunction()
