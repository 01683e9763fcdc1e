# cmake -DOUT=page_files.cc -DFILES="PATH|TYPE|FILE,..." -P EmbedFiles.cmake: writes a C++ file that has the bytes of each
# file, as server/dashboard/page_files.h declares them.
set(arrays "")
set(table "")
set(index 0)
string(REPLACE "," ";" FILES "${FILES}")
foreach(entry IN LISTS FILES)
  string(REPLACE "|" ";" parts "${entry}")
  list(GET parts 0 path)
  list(GET parts 1 type)
  list(GET parts 2 file)
  file(READ "${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "((0x..,){32})" "\\1\n" bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {\n${bytes}};\n")
  string(APPEND table "    {\"${path}\", \"${type}\", kFile${index}, sizeof kFile${index}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUT}" "#include \"server/dashboard/page_files.h\"

namespace recon {
namespace {

${arrays}
}  // namespace

const PageFile kPageFiles[] = {
${table}};
const size_t kPageFileCount = ${index};

}  // namespace recon
")
