#!/usr/bin/env bash
# Installs the C library from the folder where cargo left it: install.sh FOLDER. PREFIX, DESTDIR and LIBDIR may be set.
# The files name only PREFIX, never DESTDIR, so that packages can be built.
set -euo pipefail
from=$(cd "$1" && pwd)
cd "$(dirname "$0")"
prefix=${PREFIX:-/usr/local}
case "$prefix" in /*) ;; *) echo "install.sh: PREFIX must begin with /: $prefix" >&2; exit 2 ;; esac
libdir=${LIBDIR:-$prefix/lib}
to=${DESTDIR:-}
version=$(sed -n 's/^#define PGF_VERSION "\(.*\)"$/\1/p' ../include/pgfollow.h)
soname=libpgfollow.so.0
# What a static library of Rust's needs of the system (rustc --print native-static-libs).
private="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"

install -d "$to$prefix/share/man/man3" "$to$prefix/include" "$to$libdir/pkgconfig" "$to$libdir/cmake/pgfollow"
install -m 644 ../include/pgfollow.h "$to$prefix/include/pgfollow.h"
install -m 644 ../include/pgfollow_libpq.h "$to$prefix/include/pgfollow_libpq.h"
install -m 644 man/*.3 "$to$prefix/share/man/man3"
install -m 755 "$from/libpgfollow_c.so" "$to$libdir/libpgfollow.so.$version"
ln -sf "libpgfollow.so.$version" "$to$libdir/$soname"
ln -sf "$soname" "$to$libdir/libpgfollow.so"
install -m 644 "$from/libpgfollow_c.a" "$to$libdir/libpgfollow.a"

cat > "$to$libdir/pkgconfig/pgfollow.pc" <<END
prefix=$prefix
includedir=\${prefix}/include
libdir=$libdir

Name: pgfollow
Description: Follow the PostgreSQL primary through a failover
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lpgfollow
Libs.private: $private
END

# Found from the place of the file itself, so that the tree may be moved.
cat > "$to$libdir/cmake/pgfollow/pgfollowConfig.cmake" <<END
# pgfollow::pgfollow is the shared library, pgfollow::static the other one.
get_filename_component(_pgfollow_libdir "\${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
file(RELATIVE_PATH _pgfollow_include "$libdir" "$prefix/include")
get_filename_component(_pgfollow_include "\${_pgfollow_libdir}/\${_pgfollow_include}" ABSOLUTE)
if(NOT TARGET pgfollow::pgfollow)
  add_library(pgfollow::pgfollow SHARED IMPORTED)
  set_target_properties(pgfollow::pgfollow PROPERTIES
    IMPORTED_LOCATION "\${_pgfollow_libdir}/libpgfollow.so.$version"
    IMPORTED_SONAME "$soname"
    INTERFACE_INCLUDE_DIRECTORIES "\${_pgfollow_include}")
  add_library(pgfollow::static STATIC IMPORTED)
  set_target_properties(pgfollow::static PROPERTIES
    IMPORTED_LOCATION "\${_pgfollow_libdir}/libpgfollow.a"
    INTERFACE_LINK_LIBRARIES "$private"
    INTERFACE_INCLUDE_DIRECTORIES "\${_pgfollow_include}")
endif()
unset(_pgfollow_libdir)
unset(_pgfollow_include)
END
# While the first number is 0, the second one may break what was built before.
cat > "$to$libdir/cmake/pgfollow/pgfollowConfigVersion.cmake" <<END
set(PACKAGE_VERSION "$version")
string(REGEX REPLACE "^([0-9]+\\\\.[0-9]+).*" "\\\\1" _pgfollow_ours "$version")
string(REGEX REPLACE "^([0-9]+\\\\.[0-9]+).*" "\\\\1" _pgfollow_wanted "\${PACKAGE_FIND_VERSION}")
if(_pgfollow_wanted VERSION_EQUAL _pgfollow_ours AND NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
END
echo "pgfollow $version is in $to$prefix"
