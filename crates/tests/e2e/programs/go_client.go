// A client whose socket calls no library sees: connects, sends, and compares the answer.
//
// usage: go_client PORT     against exchange.py server
//
//	go_client on FD    on an inherited connection
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

const size = 300000

func pattern(seed int) []byte {
	bytes := make([]byte, size)
	for place := range bytes {
		bytes[place] = byte((place*seed + place/7) % 251)
	}
	return bytes
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func open() (net.Conn, error) {
	if os.Args[1] != "on" {
		return net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	}
	fd, err := strconv.Atoi(os.Args[2])
	check(err)
	return net.FileConn(os.NewFile(uintptr(fd), "connection"))
}

func main() {
	connection, err := open()
	check(err)
	_, err = connection.Write(pattern(3))
	check(err)
	got := make([]byte, size)
	_, err = io.ReadFull(connection, got)
	check(err)
	if string(got) != string(pattern(5)) {
		check(fmt.Errorf("not the same bytes"))
	}
	check(connection.(*net.TCPConn).CloseWrite())
	fmt.Println("exchanged")
}
