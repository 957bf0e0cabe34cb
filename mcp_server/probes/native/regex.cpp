// What model_base.h instantiates of std::regex (parse_device_str), once for all rebuilt wrappers: a third of a
// wrapper's compile time. See the declarations in probes.h.
#include <regex>
#include <string>

template class std::basic_regex<char>;
template bool std::regex_match(const std::string&, std::smatch&, const std::regex&,
                               std::regex_constants::match_flag_type);
