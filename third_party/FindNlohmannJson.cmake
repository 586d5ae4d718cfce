# Finds the nlohmann-json headers that pip's package nlohmann-json brings, or a system copy.
# Target: nlohmann_json::nlohmann_json (interface, system include).
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('nlohmann_json'); print(os.path.join(list(s.submodule_search_locations)[0], 'include') if s else '')"
  OUTPUT_VARIABLE _nlohmann_pip OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(NlohmannJson_INCLUDE_DIR nlohmann/json.hpp HINTS ${_nlohmann_pip})
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NlohmannJson REQUIRED_VARS NlohmannJson_INCLUDE_DIR)
if(NlohmannJson_FOUND AND NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  set_target_properties(nlohmann_json::nlohmann_json PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${NlohmannJson_INCLUDE_DIR}
    INTERFACE_INCLUDE_DIRECTORIES ${NlohmannJson_INCLUDE_DIR})
endif()
