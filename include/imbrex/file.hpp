// Files that results go to: whole, or not at all.
#pragma once

#include <string>
#include <string_view>

namespace imbrex {

/// Writes `bytes` to `path`. A file appears whole and atomically: a reader sees the old one or the new one, and a
/// program that is ended meanwhile by SIGTERM, SIGINT or SIGHUP leaves nothing behind. Its permissions are the umask's;
/// those of a file of the same user are kept. A file that takes another's place is on disk before it does; other files
/// are not forced there.
///
/// A device, a pipe or a link is written to where it is, and a link leads to a file that is there. Those of another
/// user in a folder that others may write to are refused.
///
/// Throws Error(invalid_input) if the path is at fault (no such folder, no permission), and Error(runtime_failure) if
/// writing fails (a full disk); the message names the path.
void write_file(const std::string& path, std::string_view bytes);

/// Throws Error(invalid_input) where write_file would refuse `path`, as far as one can tell without writing; for before
/// a long run, not after it.
void expect_writable(const std::string& path);

}  // namespace imbrex
