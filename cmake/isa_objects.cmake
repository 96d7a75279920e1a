# Fails the build when an object that is compiled for one instruction set defines a weak function outside its own namespace:
# the linker keeps one copy for everybody, and a slower CPU would die in it of an illegal instruction. A template of the
# standard library passes when a type of the namespace is among its arguments, since no other object can ask for it.
#   cmake -DNM=nm "-DOBJECTS=a.o;b.o" -P isa_objects.cmake
if(NOT OBJECTS)
  message(FATAL_ERROR "no objects to check")
endif()
set(LEAKED "")
foreach(OBJECT IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" -P -g "${OBJECT}" OUTPUT_VARIABLE SYMBOLS RESULT_VARIABLE FAILED ERROR_VARIABLE WHY)
  if(NOT FAILED EQUAL 0)
    message(WARNING "Not checked, since ${NM} cannot read it: ${OBJECT}\n${WHY}")  # other tools' link-time optimization
  endif()
  string(REGEX MATCHALL "[^\n]+ W [^\n]*" WEAK "${SYMBOLS}")
  list(FILTER WEAK EXCLUDE REGEX "[0-9]isa_")
  foreach(SYMBOL IN LISTS WEAK)
    string(REGEX REPLACE " W .*" "" SYMBOL "${SYMBOL}")
    get_filename_component(NAME "${OBJECT}" NAME)
    string(APPEND LEAKED "\n  ${NAME}: ${SYMBOL}")
  endforeach()
endforeach()
if(LEAKED)
  message(FATAL_ERROR "These functions, compiled for one instruction set, would be everybody's (c++filt shows their names).\n"
    "Move what needs them into a source that is compiled for all.${LEAKED}")
endif()
