//! The program on a SQLite file: no server, several processes.

mod commands;
mod processes;
mod support;
