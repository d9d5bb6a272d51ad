//! The program on a SQLite file: no server, several processes.

mod commands;
mod demo;
mod processes;
mod support;
