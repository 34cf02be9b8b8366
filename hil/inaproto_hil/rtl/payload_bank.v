// Stored frames of one child: a row is a beat, 32-bit words are written by themselves, reads take a cycle.
// It is Verilog because Amaranth gives every memory contents, which for these are as large as the design is else.
module payload_bank #(
  parameter WORDS = 4,
  parameter DEPTH = 1024,
  parameter ADDRESS = 10
) (
  input clk,
  input [ADDRESS-1:0] write_address,
  input [32*WORDS-1:0] write_data,
  input [WORDS-1:0] write_enable,
  input [ADDRESS-1:0] read_address,
  output reg [32*WORDS-1:0] read_data
);
  reg [32*WORDS-1:0] rows [0:DEPTH-1];
  integer word;

  always @(posedge clk) begin
    for (word = 0; word < WORDS; word = word + 1)
      if (write_enable[word])
        rows[write_address][32*word +: 32] <= write_data[32*word +: 32];
    read_data <= rows[read_address];
  end
endmodule
