# cmake -DNM=nm -DOBJECTS=a.o,b.o -P no_shared_symbols.cmake
# Fails when an object defines a weak or unique symbol, or any global one but its kernel table.
string(REPLACE "," ";" objects "${OBJECTS}")
foreach(object IN LISTS objects)
  execute_process(COMMAND ${NM} --defined-only --extern-only ${object} OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${symbols}" symbols)
  if(NOT symbols MATCHES "^[0-9a-f]+ [DR] [A-Za-z0-9_]*Kernels[A-Za-z0-9_]*$")
    message(FATAL_ERROR "${object} defines more than its kernel table:\n${symbols}")
  endif()
endforeach()
