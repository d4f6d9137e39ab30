//! The files of the dashboard. All come with this crate; their licences do, too.

/// A file.
pub struct File {
    /// Its path on the server.
    pub path: &'static str,
    /// Its type.
    pub kind: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
}

/// All files. ECharts is drawn by `assets/echarts.entry.js` from its package of npm.
pub const FILES: &[File] = &[
    File {
        path: "/",
        kind: "text/html; charset=utf-8",
        bytes: include_bytes!("../assets/index.html"),
    },
    File {
        path: "/dash.css",
        kind: "text/css; charset=utf-8",
        bytes: include_bytes!("../assets/dash.css"),
    },
    File {
        path: "/dash.js",
        kind: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../assets/dash.js"),
    },
    File {
        path: "/topology.js",
        kind: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../assets/topology.js"),
    },
    File {
        path: "/echarts.min.js",
        kind: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../assets/echarts.min.js"),
    },
    File {
        path: "/licences/echarts.txt",
        kind: "text/plain; charset=utf-8",
        bytes: include_bytes!("../assets/licences/echarts.txt"),
    },
    File {
        path: "/licences/zrender.txt",
        kind: "text/plain; charset=utf-8",
        bytes: include_bytes!("../assets/licences/zrender.txt"),
    },
    File {
        path: "/licences/tslib.txt",
        kind: "text/plain; charset=utf-8",
        bytes: include_bytes!("../assets/licences/tslib.txt"),
    },
];
