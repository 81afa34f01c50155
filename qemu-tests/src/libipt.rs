//! Debian's libipt as a second opinion.
