/* Version of the library and of its public interface. The build reads the soname from here. */
#ifndef TENSORPROBE_VERSION_H
#define TENSORPROBE_VERSION_H

#define TP_VERSION_MAJOR 0
#define TP_VERSION_MINOR 1
#define TP_VERSION_PATCH 0
#define TP_VERSION_STRING "0.1.0"

/* Raised whenever the binary interface changes; the soname is libtensorprobe.so.<TP_SOVERSION>. */
#define TP_SOVERSION 0

#endif
