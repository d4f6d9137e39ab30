# The echo client in Ruby: threads, buffered and non-blocking reads.
require 'socket'

threads = (0...4).map do |number|
  Thread.new do
    connection = TCPSocket.new('127.0.0.1', Integer(ARGV[0]))
    source = Random.new(number)
    [1, 3000, 70_000, 1_500_000, 17, 4_000_000].each do |size|
      block = source.bytes(size)
      connection.write("#{size}\n", block)
      got = +''
      if number.even?
        got = connection.read(size)
      else
        while got.bytesize < size
          part = connection.read_nonblock(100_003, exception: false)
          raise 'an early end' if part.nil?
          part == :wait_readable ? connection.wait_readable(20) : got << part
        end
      end
      raise "other bytes of #{size}" unless got == block
    end
    connection.close_write
    raise 'something behind the end' unless connection.read(1).nil?
  end
end
threads.each(&:value)
puts 'the same bytes came back'
