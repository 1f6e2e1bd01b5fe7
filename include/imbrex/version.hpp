// The version of these headers.
#pragma once

#define IMBREX_VERSION_MAJOR 0
#define IMBREX_VERSION_MINOR 1
#define IMBREX_VERSION_PATCH 0
