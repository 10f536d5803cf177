# Writes the source file that embeds a fatbin: cmake -D name= -D path= -D fatbin= -D embedded= -P embed_fatbin.cmake
#
# The compiled kernels' digest stands in it. Nothing else tells ninja (of a file that is compiled together with others) or
# ccache that what .incbin names has changed: a library was linked with kernels of an older state than its host code.
file(SHA256 ${fatbin} digest)
configure_file(${CMAKE_CURRENT_LIST_DIR}/fatbin.cc.in ${embedded} @ONLY)
